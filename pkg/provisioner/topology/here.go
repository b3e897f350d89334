package topology

import (
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
)

// Here is the one place of a controller that provisions for its own node alone
// (--node-deployment). Its requirements name that place and no other, and need no
// look at the cluster: a process on each node must not watch all nodes.
type Here struct {
	segment Segment
	labels  map[string]string
}

// NewHere makes a Here of what the driver says of its node (NodeGetInfo,
// accessible_topology). It may not be empty, nor anything that no node can have.
func NewHere(segments map[string]string) (*Here, error) {
	if len(segments) == 0 {
		return nil, errors.New("the driver does not say where its node is")
	}
	segment := SegmentOf(segments)
	if err := Check([]*csi.Topology{segment.Topology()}); err != nil {
		return nil, err
	}
	return &Here{segment: segment, labels: segment.Labels()}, nil
}

// Segment is the place.
func (h *Here) Segment() Segment { return h.segment }

// Requirements has the driver make the volume here. It fails where the class
// admits no volumes here. The name of the claim makes no difference, and neither
// does the selected node, which is ours.
func (h *Here) Requirements(_ string, allowed []v1.TopologySelectorTerm, _ string) (*csi.TopologyRequirement, error) {
	admits, err := h.Admitted(allowed)
	switch {
	case err != nil:
		return nil, err
	case !admits:
		return nil, fmt.Errorf("the volume can only be at %s, which none of the allowedTopologies of the class admits: correct the class, or have another node selected", h.segment)
	}
	return requirement([]Segment{h.segment}, 0), nil
}

// Admitted reports whether the allowedTopologies of a class admit volumes here.
// None admit every place. An error says what is wrong with them.
func (h *Here) Admitted(allowed []v1.TopologySelectorTerm) (bool, error) {
	permitted, err := flatten(allowed)
	if err != nil {
		return false, err
	}
	for _, s := range permitted {
		if within(h.labels, s) {
			return true, nil
		}
	}
	return len(permitted) == 0, nil
}

// Has reports whether a volume of that affinity can be used here. One without an
// affinity can be used everywhere.
func (h *Here) Has(affinity *v1.VolumeNodeAffinity) bool { return Matches(affinity, h.labels) }
