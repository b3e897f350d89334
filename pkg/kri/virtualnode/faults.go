package virtualnode

import (
	"context"
	"slices"
	"sync"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// Faults are the node's faults that last until released. It is safe for
// concurrent use.
type Faults struct {
	mu     sync.Mutex
	active map[nodectl.Fault]chan struct{} // closed on release
}

// NewFaults returns Faults with none switched on.
func NewFaults() *Faults { return &Faults{active: map[nodectl.Fault]chan struct{}{}} }

// Set switches a fault on.
func (f *Faults) Set(fault nodectl.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.active[fault] == nil {
		f.active[fault] = make(chan struct{})
	}
}

// Release switches faults off, and lets go whatever hangs in them.
func (f *Faults) Release(faults ...nodectl.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fault := range faults {
		if ch := f.active[fault]; ch != nil {
			close(ch)
			delete(f.active, fault)
		}
	}
}

// Active lists the faults that are on, sorted.
func (f *Faults) Active() []nodectl.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := []nodectl.Fault{}
	for fault := range f.active {
		out = append(out, fault)
	}
	slices.Sort(out)
	return out
}

// released returns a channel that is closed when the fault is released, nil if
// it is not on.
func (f *Faults) released(fault nodectl.Fault) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active[fault] // A nil map entry converts to a nil channel.
}

// Hang blocks while the fault is on. It returns ctx's error if that ends first.
func (f *Faults) Hang(ctx context.Context, fault nodectl.Fault) error {
	for {
		ch := f.released(fault)
		if ch == nil {
			return nil
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
