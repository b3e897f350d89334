package kri

import (
	"container/list"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

// maxReasonEntries bounds the cache. Entries are not removed when a pod goes;
// the least recently used one makes room.
const maxReasonEntries = 1000

// ReasonItem is why a container could not be started.
type ReasonItem struct {
	// Err is shown as the reason of the waiting container, so its text is a
	// CamelCase word.
	Err error
	// Message is for people.
	Message string
}

type reasonKey struct {
	uid  types.UID
	name string
}

type reasonEntry struct {
	key  reasonKey
	item ReasonItem
}

// ReasonCache remembers, per pod UID and container name, why the latest attempt
// to start the container failed. It is best effort: it lives in memory and
// forgets the least recently used of more than 1000 entries. It is safe for
// concurrent use.
type ReasonCache struct {
	mu      sync.Mutex
	order   *list.List // of *reasonEntry, most recently used first
	entries map[reasonKey]*list.Element
}

// NewReasonCache returns an empty cache.
func NewReasonCache() *ReasonCache {
	return &ReasonCache{order: list.New(), entries: map[reasonKey]*list.Element{}}
}

// Update takes over the outcome of one SyncPod. Only results of StartContainer
// count, and only those that name their container: a failure is remembered, a
// success forgets the failure before it.
func (c *ReasonCache) Update(uid types.UID, result container.PodSyncResult) {
	for _, r := range result.SyncResults {
		if r == nil || r.Action != container.StartContainer {
			continue
		}
		name, ok := r.Target.(string)
		if !ok {
			continue
		}
		if r.Error == nil {
			c.Remove(uid, name)
			continue
		}
		c.add(reasonKey{uid, name}, ReasonItem{Err: r.Error, Message: r.Message})
	}
}

// Get returns a copy of what is remembered, and whether anything is.
func (c *ReasonCache) Get(uid types.UID, name string) (*ReasonItem, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.entries[reasonKey{uid, name}]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(el)
	item := el.Value.(*reasonEntry).item
	return &item, true
}

// Remove forgets the container.
func (c *ReasonCache) Remove(uid types.UID, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[reasonKey{uid, name}]; ok {
		c.drop(el)
	}
}

func (c *ReasonCache) add(key reasonKey, item ReasonItem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[key]; ok {
		el.Value.(*reasonEntry).item = item
		c.order.MoveToFront(el)
		return
	}
	c.entries[key] = c.order.PushFront(&reasonEntry{key: key, item: item})
	if c.order.Len() > maxReasonEntries {
		c.drop(c.order.Back())
	}
}

func (c *ReasonCache) drop(el *list.Element) {
	c.order.Remove(el)
	delete(c.entries, el.Value.(*reasonEntry).key)
}
