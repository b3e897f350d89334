package cache

import (
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
)

// node is a node's pairs, and whether they have to be reported. It stays when
// its last pair is gone: that there is nothing left has to be reported as well,
// and again if that fails.
type node struct {
	name  string
	mu    sync.RWMutex
	pairs []*pair
	// inUse is what the node's last list names without there being a pair.
	inUse map[v1.UniqueVolumeName]struct{}
	// known: something was reported at least once.
	known bool
	// flagged: the report has changed since it was last taken. Exactly then the
	// node is among dirtyNodes, at dirtyAt.
	flagged bool
	dirtyAt int32
}

func (n *node) insert(p *pair) {
	p.at = int32(len(n.pairs))
	n.pairs = append(n.pairs, p)
}

func (n *node) remove(p *pair) {
	last := len(n.pairs) - 1
	n.pairs[p.at] = n.pairs[last]
	n.pairs[p.at].at = p.at
	n.pairs[last] = nil
	n.pairs = n.pairs[:last]
}

// report is what the node's status.volumesAttached should be.
func (n *node) report() []v1.AttachedVolume {
	list := make([]v1.AttachedVolume, 0, len(n.pairs))
	for _, p := range n.pairs {
		if p.reported {
			list = append(list, v1.AttachedVolume{Name: p.volume, DevicePath: p.devicePath})
		}
	}
	return list
}

// dirtyNodes are the nodes that are flagged. Their number can be read without
// any lock: that is what an idle tick costs.
type dirtyNodes struct {
	count atomic.Int64
	mu    sync.Mutex
	list  []*node
}

// flag notes that the node has to be reported.
func (d *dirtyNodes) flag(n *node) {
	if n.flagged {
		return
	}
	n.flagged = true
	d.mu.Lock()
	defer d.mu.Unlock()
	n.dirtyAt = int32(len(d.list))
	d.list = append(d.list, n)
	d.count.Store(int64(len(d.list)))
}

// unflag notes that the node does not have to be reported.
func (d *dirtyNodes) unflag(n *node) {
	if !n.flagged {
		return
	}
	n.flagged = false
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.list) - 1
	d.list[n.dirtyAt] = d.list[last]
	d.list[n.dirtyAt].dirtyAt = n.dirtyAt
	d.list[last] = nil
	d.list = d.list[:last]
	d.count.Store(int64(last))
}

// unflagAll must be called with all stripes locked.
func (d *dirtyNodes) unflagAll() {
	for _, n := range d.list {
		n.flagged = false
	}
	clear(d.list)
	d.list = d.list[:0]
	d.count.Store(0)
}
