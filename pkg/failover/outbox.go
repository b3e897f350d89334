package failover

import (
	"context"
	"slices"
	"sync"
)

// outbox holds the names that are to be sent, so that a slow receiver never
// stalls the decisions, and a name can be taken back until it is received.
type outbox struct {
	mu      sync.Mutex
	pending []string
	wake    chan struct{}
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

// put adds a name, once.
func (o *outbox) put(name string) {
	o.mu.Lock()
	if !slices.Contains(o.pending, name) {
		o.pending = append(o.pending, name)
	}
	o.mu.Unlock()
	o.stir()
}

// take removes a name, sent or no longer wanted.
func (o *outbox) take(name string) {
	o.mu.Lock()
	o.pending = slices.DeleteFunc(o.pending, func(p string) bool { return p == name })
	o.mu.Unlock()
	o.stir()
}

func (o *outbox) stir() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *outbox) head() (string, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pending) == 0 {
		return "", false
	}
	return o.pending[0], true
}

// run sends until ctx ends.
func (o *outbox) run(ctx context.Context, out chan<- string) {
	for {
		name, ok := o.head()
		to := out
		if !ok {
			to = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case to <- name:
			o.take(name)
		}
	}
}
