package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

// ErrDrainTimeout is returned by Wait when parts were still running at the end
// of the drain.
var ErrDrainTimeout = errors.New("parts were still running at the end of the drain")

// Group runs named parts until one fails or the context ends.
type Group struct {
	ctx   context.Context
	group *errgroup.Group
	drain time.Duration
}

// NewGroup returns a Group whose parts get a context that ends with ctx, or
// with the first failure. Drain bounds how long Wait waits after that; 0 is no
// bound, for a group inside one that has one. Of nested groups the inner one
// must give up first, or nobody hears what it has to say.
func NewGroup(ctx context.Context, drain time.Duration) *Group {
	group, ctx := errgroup.WithContext(ctx)
	return &Group{ctx: ctx, group: group, drain: drain}
}

// Context ends with the group.
func (g *Group) Context() context.Context { return g.ctx }

// Go starts a part. A part that returns early without an error while the group
// still runs is a failure: every part is meant to run as long as the group.
func (g *Group) Go(name string, run func(context.Context) error) {
	g.group.Go(func() error {
		logger := klog.FromContext(g.ctx).WithValues("controller", name)
		err := Safely(func() error { return run(klog.NewContext(g.ctx, logger)) })
		var p *PanicError
		if errors.As(err, &p) {
			logger.Error(err, "Caught a panic", "stack", string(p.Stack))
		}
		switch {
		case g.ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)):
			return nil
		case err == nil:
			return fmt.Errorf("%s ended by itself", name)
		default:
			return fmt.Errorf("running %s: %w", name, err)
		}
	})
}

// Wait returns the first error once every part has returned, or
// ErrDrainTimeout when some have not within the drain after the group's end.
func (g *Group) Wait() error {
	done := make(chan error, 1)
	go func() { done <- g.group.Wait() }()
	select {
	case err := <-done:
		return err
	case <-g.ctx.Done():
	}
	var over <-chan time.Time
	if g.drain > 0 {
		timer := time.NewTimer(g.drain)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case err := <-done:
		return err
	case <-over:
		cause := context.Cause(g.ctx)
		if errors.Is(cause, context.Canceled) {
			// A group outside would take it for the end that was asked for.
			return ErrDrainTimeout
		}
		return errors.Join(ErrDrainTimeout, cause)
	}
}

// PanicError is a panic turned into an error.
type PanicError struct {
	Value any
	Stack []byte
}

// Error tells the panic's value; the stack is in Stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Safely calls f and returns a panic in it as a *PanicError, so that one bad
// object backs off alone and the process lives on.
func Safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
