package cache

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

type actualStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	mode    Mode
	clock   clock.PassiveClock
	start   time.Time
	volumes *striped[v1.UniqueVolumeName, placement]
	nodes   *striped[string, *node]
	dirty   dirtyNodes
}

// NewActualStateOfWorld makes one in which nothing is attached.
func NewActualStateOfWorld(volumePluginMgr *volume.VolumePluginMgr, opts ...Option) ActualStateOfWorld {
	o := optionsOf(opts)
	return &actualStateOfWorld{
		plugins: volumePluginMgr,
		mode:    o.mode,
		clock:   o.clock,
		start:   o.clock.Now(),
		volumes: newStriped[v1.UniqueVolumeName, placement](),
		nodes:   newStriped[string, *node](),
	}
}

// nodeOf finds the node, or makes it.
func (w *actualStateOfWorld) nodeOf(nodeName string) *node {
	if n, ok := w.nodes.get(nodeName); ok {
		return n
	}
	s := w.nodes.of(nodeName)
	s.Lock()
	defer s.Unlock()
	n, ok := s.m[nodeName]
	if !ok {
		n = &node{name: nodeName}
		s.m[nodeName] = n
	}
	return n
}

// change calls f with the pair, under its locks. It is an error if there is no
// such pair.
func (w *actualStateOfWorld) change(name v1.UniqueVolumeName, nodeName string, f func(*pair)) error {
	s := w.volumes.of(name)
	s.Lock()
	defer s.Unlock()
	p := s.m[name].on(nodeName)
	if p == nil {
		return fmt.Errorf("volume %q is not attached to node %q", name, nodeName)
	}
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	f(p)
	return nil
}

// lockNode locks a node for a change that concerns no one volume. The stripe is
// any one, so long as whoever has all of them is alone.
func (w *actualStateOfWorld) lockNode(n *node) (unlock func()) {
	s := w.volumes.of(v1.UniqueVolumeName(n.name))
	s.Lock()
	n.mu.Lock()
	return func() {
		n.mu.Unlock()
		s.Unlock()
	}
}

// changeReport calls f with the node, under its locks. It is an error if
// nothing was ever reported for it.
func (w *actualStateOfWorld) changeReport(nodeName string, f func(*node)) error {
	if n, ok := w.nodes.get(nodeName); ok {
		defer w.lockNode(n)()
		if n.known {
			f(n)
			return nil
		}
	}
	return fmt.Errorf("nothing was ever reported as attached to node %q", nodeName)
}
