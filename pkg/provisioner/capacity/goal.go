package capacity

import (
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// item is what one object is for: the room of a class in a place. It is a value
// and serves as a key.
type item struct {
	segment topology.Segment
	class   string
	// stray is set instead for an object with our labels that is for no item, as
	// one that somebody edited.
	stray types.UID
}

// itemOf tells what an object is for.
func itemOf(obj *storagev1.CSIStorageCapacity) item {
	if obj.NodeTopology == nil || len(obj.NodeTopology.MatchExpressions) > 0 || obj.StorageClassName == "" {
		return item{stray: obj.UID}
	}
	return item{segment: topology.SegmentOf(obj.NodeTopology.MatchLabels), class: obj.StorageClassName}
}

// counts reports whether there are objects for a class.
func (cfg *Config) counts(class *storagev1.StorageClass) bool {
	if class.Provisioner != cfg.DriverName {
		return false
	}
	late := class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	return late || cfg.ImmediateBinding
}

// plan tells which items there should be, each with the UID of its class: under
// another UID the name stands for another class.
func (cfg *Config) plan(classes []*storagev1.StorageClass, segments []topology.Segment) map[item]types.UID {
	items := map[item]types.UID{}
	for _, class := range classes {
		if !cfg.counts(class) {
			continue
		}
		for _, segment := range segments {
			items[item{segment: segment, class: class.Name}] = class.UID
		}
	}
	return items
}

// goals holds the last plan.
type goals struct {
	mu sync.RWMutex
	// items is nil until the first plan, and then replaced, never changed.
	items map[item]types.UID
}

// set takes a new plan and returns the items that it changes: those that are
// new, or of a new class, and those that are gone.
func (g *goals) set(items map[item]types.UID) (changed []item) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for it, uid := range items {
		if was, ok := g.items[it]; !ok || was != uid {
			changed = append(changed, it)
		}
	}
	for it := range g.items {
		if _, ok := items[it]; !ok {
			changed = append(changed, it)
		}
	}
	g.items = items
	return changed
}

// all returns the plan, which must not be changed; nil if there is none yet.
func (g *goals) all() map[item]types.UID {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.items
}

// wants reports whether the item should have an object; known is whether that can
// be told.
func (g *goals) wants(it item) (wanted, known bool) {
	items := g.all()
	_, wanted = items[it]
	return wanted, items != nil
}
