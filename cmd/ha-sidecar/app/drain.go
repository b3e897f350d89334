package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/leader"
	"github.com/ha-sidecar/ha-sidecar/internal/runner"
)

// closing is how long what follows a drain may take: releasing the leases, and
// the last answers over HTTP.
const closing = 10 * time.Second

// part is a controller that is ready to run.
type part struct {
	name string
	run  func(context.Context) error
	// drain tells run to return once what is under way has ended. Nil: run
	// breaks off when its context ends, and what it leaves is safe to go on from.
	drain func()
}

// runParts runs the controllers until ctx ends or one fails, and then waits for
// them, for as long as drain says. Calls to the driver that are under way go on
// meanwhile, until held ends: one that is broken off may still land, perhaps
// after the next leader has acted. If they outlast the drain the error is
// leader.ErrUnfinished, which keeps the leases.
func runParts(ctx, held context.Context, drain time.Duration, parts []part) error {
	group := runner.NewGroup(ctx, drain)
	for _, p := range parts {
		group.Go(p.name, p.within(held))
	}
	err := group.Wait()
	if errors.Is(err, runner.ErrDrainTimeout) {
		return fmt.Errorf("%w after --drain-timeout=%v: %w", leader.ErrUnfinished, drain, err)
	}
	return err
}

// within is run for a group: a part that drains is told so at the end of the
// group's context, and gets held for its own.
func (p part) within(held context.Context) func(context.Context) error {
	if p.drain == nil {
		return p.run
	}
	return func(ctx context.Context) error {
		defer context.AfterFunc(ctx, p.drain)()
		return p.run(klog.NewContext(held, klog.FromContext(ctx)))
	}
}
