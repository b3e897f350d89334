package attach

import (
	"maps"
	"slices"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// VolumeStatus is what this process knows of one volume, for people. It has
// neither publish contexts nor anything else that may be secret.
type VolumeStatus struct {
	Handle volume.Handle `json:"volume"`
	// Holds: a node has or may have the volume, so it must not be deleted. One
	// fenced off its node counts for as long as its VolumeAttachment exists.
	Holds bool         `json:"holds"`
	Nodes []NodeStatus `json:"nodes"`
}

// NodeStatus is one node of a volume.
type NodeStatus struct {
	Node  string `json:"node"`
	State State  `json:"state"`
	// Wanted: a VolumeAttachment wants the volume there.
	Wanted bool `json:"wanted"`
	// Inherited: the intent is a former leader's.
	Inherited bool `json:"inherited,omitempty"`
	// Attachments are the names of the VolumeAttachments.
	Attachments []string `json:"volumeAttachments"`
}

// Volumes lists what is known, in the order of handles and nodes: nothing while
// another process leads.
func (c *Controller) Volumes() []VolumeStatus {
	l := c.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]VolumeStatus, 0, len(l.volumes))
	for _, h := range slices.Sorted(maps.Keys(l.volumes)) {
		v := l.volumes[h]
		s := VolumeStatus{Handle: h, Holds: v.holds(), Nodes: []NodeStatus{}}
		for _, node := range slices.Sorted(maps.Keys(v.keys)) {
			e := v.keys[node]
			n := NodeStatus{Node: node, State: e.state(), Wanted: e.wanted(), Inherited: e.inherited, Attachments: []string{}}
			for _, r := range sorted(e.refs) {
				if !r.gone {
					n.Attachments = append(n.Attachments, r.va.Name)
				}
			}
			s.Nodes = append(s.Nodes, n)
		}
		list = append(list, s)
	}
	return list
}

// Holds reports whether a node has or may have the volume, as far as this
// process knows: it must not be deleted then. A volume fenced off its node
// counts for as long as its VolumeAttachment exists.
func (c *Controller) Holds(h volume.Handle) bool {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	v, ok := c.ledger.volumes[h]
	return ok && v.holds()
}

func (v *volumeEntry) holds() bool {
	for _, e := range v.keys {
		if s := e.state(); s != Absent && s != Fenced {
			return true
		}
		for _, r := range e.refs {
			if !r.gone {
				return true
			}
		}
	}
	return len(v.calls) > 0
}
