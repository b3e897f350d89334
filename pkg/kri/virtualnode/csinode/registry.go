package csinode

import (
	"fmt"
	"sync"
)

// Driver is a driver that has answered: how to call it, and what it is.
type Driver struct {
	*Client
	Info
}

// Registry holds the drivers of a node, by name. It is safe for concurrent use.
type Registry struct {
	mu      sync.Mutex
	drivers map[string]Driver
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry { return &Registry{drivers: map[string]Driver{}} }

// Add enters a driver, in place of an earlier one of its name.
func (r *Registry) Add(d Driver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drivers[d.Name] = d
}

// Get returns the named driver.
func (r *Registry) Get(name string) (Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.drivers[name]
	if !ok {
		return Driver{}, fmt.Errorf("CSI driver %s is not registered on this node", name)
	}
	return d, nil
}

// All returns the drivers in no order.
func (r *Registry) All() []Driver {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Driver, 0, len(r.drivers))
	for _, d := range r.drivers {
		out = append(out, d)
	}
	return out
}
