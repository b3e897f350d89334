package cache

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// pair is one volume on one node. It takes 64 bytes, and the flags are a byte
// each: they are guarded by different locks (see the package comment).
type pair struct {
	node       *node
	volume     v1.UniqueVolumeName // one string for all pairs of the volume
	spec       *volume.Spec
	devicePath string
	// detachAt is one more than the nanoseconds from the cache's start to the
	// detach request, or 0 if there is none: a time.Time takes three times that.
	detachAt int64
	at       int32 // where it is in node.pairs
	// confirmed is false where the pair is uncertain.
	confirmed bool
	// reported: it is to be in the node's status.volumesAttached.
	reported bool
	mounted  bool
	// claimed: in mode Seed, SetVolumeMountedByNode(true) came at least once; in
	// mode Modern, the node's last list names the volume.
	claimed bool
}

// placement is the pairs of one volume. Nearly all volumes are on one node: only
// those on more take a map.
type placement struct {
	one  *pair
	more map[string]*pair // by node; nil where one is not
}

// on is the pair on the node, or nil.
func (at placement) on(nodeName string) *pair {
	if at.one != nil && at.one.node.name == nodeName {
		return at.one
	}
	return at.more[nodeName]
}

// each calls yield for all pairs.
func (at placement) each(yield func(*pair) bool) {
	if at.one != nil {
		yield(at.one)
		return
	}
	for _, p := range at.more {
		if !yield(p) {
			return
		}
	}
}

func (at placement) empty() bool { return at.one == nil && len(at.more) == 0 }

// name is the string that the volume's pairs share, or else the given one.
func (at placement) name(name v1.UniqueVolumeName) v1.UniqueVolumeName {
	for p := range at.each {
		return p.volume
	}
	return name
}

// with adds a pair on another node.
func (at placement) with(p *pair) placement {
	if at.empty() {
		return placement{one: p}
	}
	if at.more == nil {
		at = placement{more: map[string]*pair{at.one.node.name: at.one}}
	}
	at.more[p.node.name] = p
	return at
}

// without takes a pair out, and the map away with the last but one.
func (at placement) without(p *pair) placement {
	if at.more == nil {
		return placement{}
	}
	delete(at.more, p.node.name)
	if len(at.more) == 1 {
		for _, last := range at.more {
			return placement{one: last}
		}
	}
	return at
}

// inOrder appends all pairs and p to buf, in the order in which their nodes are
// locked.
func (at placement) inOrder(p *pair, buf []*pair) []*pair {
	buf = append(buf, p)
	for other := range at.each {
		if other != p {
			buf = append(buf, other)
		}
	}
	slices.SortFunc(buf, func(a, b *pair) int { return cmp.Compare(a.node.name, b.node.name) })
	return buf
}
