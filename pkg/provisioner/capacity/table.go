package capacity

import (
	"cmp"
	"slices"
	"sync"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// table knows the objects that there are: from the informer, and from the
// replies to our own writes, which the informer tells of only later. Without
// those a second object would be created for an item in between.
type table struct {
	mu     sync.Mutex
	byUID  map[types.UID]*storagev1.CSIStorageCapacity
	byItem map[item]map[types.UID]*storagev1.CSIStorageCapacity
}

func newTable() *table {
	return &table{
		byUID:  map[types.UID]*storagev1.CSIStorageCapacity{},
		byItem: map[item]map[types.UID]*storagev1.CSIStorageCapacity{},
	}
}

// put takes an object, unless a later one is known, and returns its item and how
// many objects that has now.
func (t *table) put(obj *storagev1.CSIStorageCapacity) (it item, count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	it = itemOf(obj)
	if known := t.byUID[obj.UID]; known != nil {
		if !older(obj, known) {
			t.drop(known)
		} else {
			it = itemOf(known)
			return it, len(t.byItem[it])
		}
	}
	t.byUID[obj.UID] = obj
	if t.byItem[it] == nil {
		t.byItem[it] = map[types.UID]*storagev1.CSIStorageCapacity{}
	}
	t.byItem[it][obj.UID] = obj
	return it, len(t.byItem[it])
}

// older reports whether obj is of an earlier version than known. Versions that
// cannot be compared are taken as they come.
func older(obj, known *storagev1.CSIStorageCapacity) bool {
	order, err := resourceversion.CompareResourceVersion(obj.ResourceVersion, known.ResourceVersion)
	return err == nil && order < 0
}

// remove forgets an object and returns its item and how many objects that still
// has; known is false if there was no such object.
func (t *table) remove(uid types.UID) (it item, count int, known bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	obj := t.byUID[uid]
	if obj == nil {
		return item{}, 0, false
	}
	t.drop(obj)
	it = itemOf(obj)
	return it, len(t.byItem[it]), true
}

func (t *table) drop(obj *storagev1.CSIStorageCapacity) {
	it := itemOf(obj)
	delete(t.byUID, obj.UID)
	delete(t.byItem[it], obj.UID)
	if len(t.byItem[it]) == 0 {
		delete(t.byItem, it)
	}
}

// of returns the objects of an item, the oldest first: that one stays.
func (t *table) of(it item) []*storagev1.CSIStorageCapacity {
	t.mu.Lock()
	defer t.mu.Unlock()
	objects := make([]*storagev1.CSIStorageCapacity, 0, len(t.byItem[it]))
	for _, obj := range t.byItem[it] {
		objects = append(objects, obj)
	}
	slices.SortFunc(objects, func(a, b *storagev1.CSIStorageCapacity) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return objects
}

// items returns how many objects each item has.
func (t *table) items() map[item]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	counts := make(map[item]int, len(t.byItem))
	for it, objects := range t.byItem {
		counts[it] = len(objects)
	}
	return counts
}
