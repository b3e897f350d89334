// Package misbehave makes the simulated driver break the contract of CSI on
// demand, for tests of what a caller does with replies that should never be.
package misbehave

import (
	"fmt"
	"slices"
	"sync"
)

// Create is how the reply of CreateVolume is wrong. The volume itself is made
// properly, so that a test can see whether it is left behind.
type Create string

// The ways.
const (
	// None is the default: replies are right.
	None Create = ""
	// Smaller: capacity_bytes is one less than asked for.
	Smaller Create = "smaller"
	// OtherID: where there is a volume of that name already, another one is made
	// and told.
	OtherID Create = "other-id"
	// NoVolume: the reply is empty.
	NoVolume Create = "no-volume"
	// NoSource: content_source is missing although it was asked for.
	NoSource Create = "no-source"
	// EmptyTopology: accessible_topology holds a term without segments.
	EmptyTopology Create = "empty-topology"
)

var creates = []Create{None, Smaller, OtherID, NoVolume, NoSource, EmptyTopology}

// Mode is how the driver misbehaves.
type Mode struct {
	Create Create `json:"create"`
	// Name of the only volume whose replies are wrong; empty is any.
	Name string `json:"name,omitempty"`
}

// Validate says what is wrong with a mode.
func (m Mode) Validate() error {
	if !slices.Contains(creates, m.Create) {
		return fmt.Errorf("create %q is none of %q", m.Create, creates[1:])
	}
	return nil
}

// Switch holds the mode of a process; its zero value behaves. It is safe for
// concurrent use.
type Switch struct {
	mu     sync.Mutex
	mode   Mode
	others int
}

// Set changes the mode.
func (s *Switch) Set(mode Mode) error {
	if err := mode.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
	return nil
}

// Create is how the reply for the volume of that name is to be wrong.
func (s *Switch) Create(name string) Create {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode.Name != "" && s.mode.Name != name {
		return None
	}
	return s.mode.Create
}

// Other is a name for another volume, never the same twice.
func (s *Switch) Other(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others++
	return fmt.Sprintf("%s-other-%d", name, s.others)
}
