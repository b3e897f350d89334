package attach

import (
	"context"
	"errors"
	"sync"
)

// errDraining: no call is begun any more. The next leader goes on.
var errDraining = errors.New("the attach controller is stopping")

// drain is the end that is not abrupt: what is under way ends, and nothing new
// begins.
type drain struct {
	mu    sync.Mutex
	begun bool
	// stop ends the intake of Run; nil before Run.
	stop context.CancelFunc
	// calls are those to the driver, whoever asked for them.
	calls sync.WaitGroup
	// run is Run's context, which bounds every call: set before the ledger is
	// rebuilt, and read after that.
	run context.Context
}

// Drain makes Run return without breaking anything off: no call to the driver
// is begun any more, those under way may end, and what they did is written.
// How long that may take is the caller's to bound, by the end of Run's context.
// It does not wait, and may be called at any time.
func (c *Controller) Drain() {
	d := &c.drain
	d.mu.Lock()
	defer d.mu.Unlock()
	d.begun = true
	if d.stop != nil {
		d.stop()
	}
}

// intake is Run's context until Drain is called.
func (d *drain) intake(ctx context.Context) (context.Context, context.CancelFunc) {
	intake, stop := context.WithCancel(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.run, d.stop = ctx, stop
	if d.begun {
		stop()
	}
	return intake, stop
}

// draining reports whether nothing new is to be begun.
func (c *Controller) draining() bool {
	c.drain.mu.Lock()
	defer c.drain.mu.Unlock()
	return c.drain.begun
}

// startCall is asked immediately before each call to the driver, and gives the
// context for it. It outlives ctx, which is whoever asked: a call that is broken
// off is uncertain, and may land late. It ends by its own deadline, and with
// Run's context: when the lease is lost, or the drain is given up. The function
// returned is to be called when the call has ended.
func (c *Controller) startCall(ctx context.Context) (context.Context, func(), error) {
	if err := c.mayAct(); err != nil {
		return nil, nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	d := &c.drain
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun {
		return nil, nil, errDraining
	}
	d.calls.Add(1)
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Timeout)
	unbind := context.AfterFunc(d.run, cancel)
	return call, func() {
		unbind()
		cancel()
		d.calls.Done()
	}, nil
}
