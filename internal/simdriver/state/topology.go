package state

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Segments are where a node or a volume is: one value for each topology key.
// None for a volume means that it is accessible from everywhere.
type Segments map[string]string

// Within says whether all segments of outer are among these. Everything is
// within no segments.
func (s Segments) Within(outer Segments) bool {
	for key, value := range outer {
		if got, ok := s[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// String is "key=value,..." in the order of the keys.
func (s Segments) String() string {
	parts := make([]string, 0, len(s))
	for _, key := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, key+"="+s[key])
	}
	return strings.Join(parts, ",")
}

// Requirement is what CSI calls a TopologyRequirement: the volume has to be
// within a term of Requisite, and one of Preferred is better.
type Requirement struct{ Requisite, Preferred []Segments }

// Terms are the segments that a new volume may get, the best first: what is
// preferred and allowed, and then what is only allowed. None: anywhere will do.
func (r Requirement) Terms() []Segments {
	var terms []Segments
	add := func(term Segments) {
		known := slices.ContainsFunc(terms, func(t Segments) bool { return maps.Equal(t, term) })
		if !known && r.allows(term) {
			terms = append(terms, term)
		}
	}
	for _, term := range slices.Concat(r.Preferred, r.Requisite) {
		add(term)
	}
	return terms
}

// allows says whether segments are within the requisite ones; all are where
// there are none.
func (r Requirement) allows(term Segments) bool {
	return len(r.Requisite) == 0 || slices.ContainsFunc(r.Requisite, term.Within)
}

// Admits says whether a volume that exists at these segments fulfils the
// requirement. One that is accessible from everywhere fulfils any. Preferences
// are none of its business.
func (r Requirement) Admits(at Segments) bool { return len(at) == 0 || r.allows(at) }

// reaches says whether the node may use the volume. A node that never told
// where it is may use all.
func (n Node) reaches(volume Volume) bool {
	return len(n.Topology) == 0 || n.Topology.Within(volume.Topology)
}

// RegisterAt is Register for a node that says where it is, from now on.
func (s *Store) RegisterAt(ctx context.Context, id string, at Segments) error {
	if err := s.Register(ctx, id); err != nil {
		return err
	}
	node, err := s.Node(id)
	if err != nil {
		return err
	}
	if maps.Equal(node.Topology, at) {
		return nil
	}
	if err := s.UpdateNode(ctx, id, func(n *Node) { n.Topology = at }); err != nil {
		return fmt.Errorf("saying where node %s is: %w", id, err)
	}
	return nil
}
