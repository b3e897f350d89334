package cache

import "k8s.io/utils/clock"

// Mode says which rules the methods of the seed follow. The package comment
// lists the differences.
type Mode int

const (
	// Seed are the rules of Kubernetes 1.4, from which the interfaces are.
	Seed Mode = iota
	// Modern are the rules that Kubernetes has come to since.
	Modern
)

// Option changes how a cache is made.
type Option func(*options)

type options struct {
	mode  Mode
	clock clock.PassiveClock
}

// WithMode chooses the rules; without it they are those of Seed.
func WithMode(mode Mode) Option { return func(o *options) { o.mode = mode } }

// WithClock replaces the clock that times detach requests.
func WithClock(c clock.PassiveClock) Option { return func(o *options) { o.clock = c } }

func optionsOf(opts []Option) options {
	o := options{mode: Seed, clock: clock.RealClock{}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}
