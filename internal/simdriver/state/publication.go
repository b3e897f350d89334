package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Publication is a volume's right to be used on a node.
type Publication struct {
	Volume string `json:"volume"`
	Node   string `json:"node"`
	// Mode is the name of the CSI access mode.
	Mode     string `json:"mode"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Generation is what the gate admits while the publication stands.
	Generation uint64    `json:"generation"`
	Since      time.Time `json:"since"`
}

// The access modes that need more than their name, as CSI spells them.
const (
	singleNode       = "SINGLE_NODE_"
	multiNodeReaders = "MULTI_NODE_READER_ONLY"
	multiNodeWriters = "MULTI_NODE_MULTI_WRITER"
)

func (p Publication) compatible(other Publication) bool {
	return p.Mode == other.Mode && p.ReadOnly == other.ReadOnly
}

func (p Publication) writes() bool { return !p.ReadOnly && p.Mode != multiNodeReaders }

// coexists says whether two nodes may have the volume so at once.
func (p Publication) coexists(other Publication) bool {
	if strings.HasPrefix(p.Mode, singleNode) || strings.HasPrefix(other.Mode, singleNode) {
		return false
	}
	if p.Mode == multiNodeWriters && other.Mode == multiNodeWriters {
		return true
	}
	return !p.writes() || !other.writes()
}

// Nodes are the IDs of the nodes that the volume is published to, sorted.
func (v Volume) Nodes() []string { return slices.Sorted(maps.Keys(v.Publications)) }

// Publish gives the volume to a node, idempotently. Its errors: ErrNotFound,
// ErrConflict (published there in another way), ErrInaccessible (the node is not
// where the volume is), ErrInUse (published elsewhere, and both at once is not
// allowed). The ledger records the last one too.
func (s *Store) Publish(ctx context.Context, want Publication) (Publication, error) {
	if _, err := s.Volume(want.Volume); err != nil {
		return Publication{}, err
	}
	node, err := s.Node(want.Node)
	if err != nil {
		return Publication{}, err
	}
	var got Publication
	err = s.update(ctx, want.Volume, func(volume *Volume) error {
		if !node.reaches(*volume) {
			return fmt.Errorf("volume %s of %s %w: node %s is at %s",
				want.Volume, volume.Topology, ErrInaccessible, want.Node, node.Topology)
		}
		if existing, ok := volume.Publications[want.Node]; ok {
			if !existing.compatible(want) {
				return fmt.Errorf("publication of %s to %s %w", want.Volume, want.Node, ErrConflict)
			}
			got = existing
			return nil
		}
		for _, other := range volume.Publications {
			if !want.coexists(other) {
				return errors.Join(
					fmt.Errorf("volume %s %w to %s as %s", want.Volume, ErrInUse, other.Node, other.Mode),
					s.record(Entry{Op: OpRefused, Volume: want.Volume, Node: want.Node, Mode: want.Mode}))
			}
		}
		volume.Generation++
		got = want
		got.Generation, got.Since = volume.Generation, s.clock.Now()
		if volume.Publications == nil {
			volume.Publications = map[string]Publication{}
		}
		volume.Publications[want.Node] = got
		// Before the gate opens, so that the ledger's interval covers all use.
		return s.record(Entry{Op: OpPublish, Volume: got.Volume, Node: got.Node,
			Mode: got.Mode, ReadOnly: got.ReadOnly, Generation: got.Generation})
	})
	if err != nil {
		return Publication{}, err
	}
	return got, s.admit(ctx, got)
}

// admit opens the gate if the publication still stands. Done on a repeated call
// too: the process may have died between the record and the gate.
func (s *Store) admit(ctx context.Context, publication Publication) error {
	return s.update(ctx, publication.Volume, func(volume *Volume) error {
		if volume.Publications[publication.Node].Generation != publication.Generation {
			return fmt.Errorf("publication of %s to %s was taken back meanwhile: %w",
				publication.Volume, publication.Node, ErrConflict)
		}
		opened, err := s.Gate(publication.Volume, publication.Node)
		if err != nil {
			return err
		}
		opened.Admit(publication.Generation)
		return opened.Close()
	})
}

// Unpublish takes the volume from a node, or from all if node is empty. When it
// returns nil, no operation of that node is in flight and none will follow. A
// publication, or a volume, that does not exist is no error.
func (s *Store) Unpublish(ctx context.Context, id, node string) error {
	nodes := []string{node}
	if node == "" {
		volume, err := s.Volume(id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
		nodes = volume.Nodes()
	}
	for _, name := range nodes {
		err := s.update(ctx, id, func(volume *Volume) error { return s.shut(ctx, volume, name) })
		if err != nil && !errors.Is(err, ErrNotFound) {
			return err
		}
	}
	return nil
}

func (s *Store) shut(ctx context.Context, volume *Volume, node string) error {
	publication, ok := volume.Publications[node]
	if !ok {
		return nil
	}
	opened, err := s.Gate(volume.ID, node)
	if err != nil {
		return err
	}
	if err := errors.Join(opened.Shut(ctx), opened.Close()); err != nil {
		return fmt.Errorf("fencing volume %s from %s: %w", volume.ID, node, err)
	}
	delete(volume.Publications, node)
	return s.record(Entry{Op: OpUnpublish, Volume: volume.ID, Node: node, Generation: publication.Generation})
}

// Publications are all that stand now, ordered by volume and node.
func (s *Store) Publications() ([]Publication, error) {
	volumes, err := s.Volumes()
	if err != nil {
		return nil, err
	}
	all := []Publication{}
	for _, volume := range volumes {
		for _, node := range volume.Nodes() {
			all = append(all, volume.Publications[node])
		}
	}
	return all, nil
}
