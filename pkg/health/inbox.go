package health

import "sync"

// kind of object that an item of the inbox names.
type kind string

const (
	kindPV      kind = "pv"
	kindClaim   kind = "pvc"
	kindPod     kind = "pod"
	kindVA      kind = "va"
	kindCSINode kind = "csinode"
	kindLease   kind = "lease"
	kindNode    kind = "node"
)

// item names an object that changed; the event loop looks it up.
type item struct {
	kind      kind
	namespace string
	name      string
}

// inbox carries items from the informers' handlers to the event loop. It never
// blocks the handler, and holds an item once however often it is put.
type inbox struct {
	ready chan struct{}

	mu    sync.Mutex
	items []item
	held  map[item]struct{}
}

func newInbox() *inbox {
	return &inbox{ready: make(chan struct{}, 1), held: map[item]struct{}{}}
}

func (b *inbox) put(i item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.held[i]; ok {
		return
	}
	b.held[i] = struct{}{}
	b.items = append(b.items, i)
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take empties the inbox, in the order of arrival.
func (b *inbox) take() []item {
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = nil
	clear(b.held)
	return items
}
