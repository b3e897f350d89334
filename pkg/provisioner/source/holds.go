package source

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// holds are the sources that this process protects for somebody now. They also
// keep apart who puts a finalizer on and who takes it off: else the one could find
// it there just before the other removes it.
type holds struct {
	mu    sync.Mutex
	byKey map[key]*hold
}

type hold struct {
	users map[types.UID]struct{}
	// removing is closed once a removal that is going on has ended; nil if none is.
	removing chan struct{}
}

func newHolds() *holds { return &holds{byKey: map[key]*hold{}} }

// add enters a user, after any removal that is going on. Fresh is whether it was
// not there before.
func (h *holds) add(ctx context.Context, k key, user types.UID) (fresh bool, err error) {
	for {
		fresh, wait := h.tryAdd(k, user)
		if wait == nil {
			return fresh, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

func (h *holds) tryAdd(k key, user types.UID) (fresh bool, wait <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.byKey[k]
	if entry == nil {
		entry = &hold{users: map[types.UID]struct{}{}}
		h.byKey[k] = entry
	}
	if entry.removing != nil {
		return false, entry.removing
	}
	_, had := entry.users[user]
	entry.users[user] = struct{}{}
	return !had, nil
}

// drop takes a user out; one that is not there is fine.
func (h *holds) drop(k key, user types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if entry := h.byKey[k]; entry != nil {
		delete(entry.users, user)
		h.tidy(k, entry)
	}
}

// beginRemoval keeps new users waiting until end is called. It is not ok while
// there is a user or another removal.
func (h *holds) beginRemoval(k key) (end func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byKey[k] != nil {
		return nil, false
	}
	entry := &hold{users: map[types.UID]struct{}{}, removing: make(chan struct{})}
	h.byKey[k] = entry
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		close(entry.removing)
		entry.removing = nil
		h.tidy(k, entry)
	}, true
}

// tidy forgets an entry that says nothing. Callers hold mu.
func (h *holds) tidy(k key, entry *hold) {
	if len(entry.users) == 0 && entry.removing == nil {
		delete(h.byKey, k)
	}
}
