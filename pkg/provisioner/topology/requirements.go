package topology

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
)

// Requirements tells where the volume of a claim may be, and where it had best
// be. Nil without an error: there is nothing to say to the driver.
//
// allowed are the allowedTopologies of the class, and selectedNode is the node
// that the scheduler has chosen, or empty for immediate binding. The terms of
// requisite are sorted and distinct; preferred is the same terms, beginning with
// that of the selected node, or with one that the name of the claim decides. An
// error is ErrNodeGone or says what is missing in which object.
func (b *Builder) Requirements(claimName string, allowed []v1.TopologySelectorTerm, selectedNode string) (*csi.TopologyRequirement, error) {
	permitted, err := flatten(allowed)
	if err != nil {
		return nil, err
	}
	if selectedNode != "" {
		return b.delayed(allowed, permitted, selectedNode)
	}
	if len(allowed) == 0 {
		if !b.cfg.Immediate {
			return nil, nil
		}
		if permitted, err = b.aggregate(); err != nil {
			return nil, err
		}
	}
	return requirement(permitted, spread(claimName, len(permitted))), nil
}

// delayed answers for a selected node.
func (b *Builder) delayed(allowed []v1.TopologySelectorTerm, permitted []Segment, name string) (*csi.TopologyRequirement, error) {
	keys, labels, err := b.selected(name)
	if err != nil {
		return nil, err
	}
	here := SegmentOf(labels)
	requisite := permitted
	switch {
	case len(permitted) > 0:
	case b.cfg.Strict:
		requisite = []Segment{here}
	case len(allowed) > 0:
		// All terms are empty. They select nothing, and neither do they say anything.
		return nil, nil
	default:
		if requisite, err = b.everyNode(keys); err != nil {
			return nil, err
		}
		// Its labels may have changed since they were read.
		requisite = distinct(append(requisite, here))
	}
	first := slices.IndexFunc(requisite, func(s Segment) bool { return within(labels, s) })
	if first < 0 {
		return nil, fmt.Errorf("the selected node %q is at %s, which none of the allowedTopologies of the class admits (%s); they may only use the keys of CSINode %q (%s): correct the class, or have another node selected", name, here, joined(permitted), name, strings.Join(keys, ", "))
	}
	if b.cfg.Strict {
		return requirement([]Segment{here}, 0), nil
	}
	return requirement(requisite, first), nil
}

// requirement makes the message; preferred begins with the segment at first.
func requirement(segments []Segment, first int) *csi.TopologyRequirement {
	if len(segments) == 0 {
		return nil
	}
	return &csi.TopologyRequirement{Requisite: topologies(segments, 0), Preferred: topologies(segments, first)}
}

// within reports whether a node with these labels is in the segment.
func within(labels map[string]string, s Segment) bool {
	for key, value := range s.Labels() {
		if have, ok := labels[key]; !ok || have != value {
			return false
		}
	}
	return true
}

func joined(segments []Segment) string {
	const most = 10
	var names []string
	for _, s := range segments[:min(most, len(segments))] {
		names = append(names, s.String())
	}
	if len(segments) > most {
		names = append(names, "...")
	}
	return strings.Join(names, "; ")
}

// aggregate returns the places of the whole cluster, for a volume that no node
// was selected for.
//
// Nodes may have registered different keys, as in the middle of an update of the
// driver, and CSI wants one set of keys in a request. We take the keys that most
// nodes of the driver have in full, and among equals the first in the alphabet:
// so a few nodes that are behind, or ahead, do not decide where volumes go, and a
// repeated call gets the same answer. external-provisioner takes those of a node
// drawn at random.
func (b *Builder) aggregate() ([]Segment, error) {
	csiNodes, err := b.cfg.CSINodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing CSINodes: %w", err)
	}
	keySets := map[string][]string{}
	complete := map[string]int{}
	for _, csiNode := range csiNodes {
		keys := b.keysOf(csiNode)
		if len(keys) == 0 {
			continue
		}
		id := strings.Join(keys, ",")
		keySets[id] = keys
		node, err := b.cfg.Nodes.Get(csiNode.Name)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("getting node %q: %w", csiNode.Name, err)
		}
		if _, missing := segmentOf(node, keys); len(missing) == 0 {
			complete[id]++
		}
	}
	if len(keySets) == 0 {
		return nil, nil
	}
	if len(complete) == 0 {
		return nil, fmt.Errorf("CSINodes have the topologyKeys %q for driver %q, and no node of the driver has labels for all of them: the kubelet sets them when the driver registers, so restart the driver's node plugins, or set them by hand", slices.Sorted(maps.Keys(keySets)), b.cfg.DriverName)
	}
	most := slices.MinFunc(slices.Collect(maps.Keys(complete)), func(x, y string) int {
		return cmp.Or(cmp.Compare(complete[y], complete[x]), cmp.Compare(x, y))
	})
	return b.everyNode(keySets[most])
}

// maxSegments bounds what allowedTopologies may stand for: the product of a few
// long lists would fill memory, and no driver could read it.
const maxSegments = 10000

var errTooMany = fmt.Errorf("the allowedTopologies of the class stand for more than %d segments: name fewer values", maxSegments)

// flatten turns allowedTopologies, an OR of ANDs of ORs, into an OR of segments.
// A term without expressions selects nothing, as it does for the scheduler.
func flatten(allowed []v1.TopologySelectorTerm) ([]Segment, error) {
	var out []Segment
	expressions := false
	for _, term := range allowed {
		if len(term.MatchLabelExpressions) == 0 {
			continue
		}
		expressions = true
		places := []map[string]string{{}}
		for _, expression := range term.MatchLabelExpressions {
			var next []map[string]string
			for _, place := range places {
				for _, value := range expression.Values {
					if have, ok := place[expression.Key]; ok && have != value {
						continue // no node has two values for a key
					}
					more := maps.Clone(place)
					more[expression.Key] = value
					if next = append(next, more); len(next) > maxSegments {
						return nil, errTooMany
					}
				}
			}
			places = next
		}
		for _, place := range places {
			out = append(out, SegmentOf(place))
		}
		if len(out) > maxSegments {
			return nil, errTooMany
		}
	}
	if expressions && len(out) == 0 {
		return nil, errors.New("the allowedTopologies of the class admit no node at all: a key has no values, or two expressions of a term contradict each other; correct the class")
	}
	return distinct(out), nil
}
