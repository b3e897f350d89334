package csiclient

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"k8s.io/klog/v2"
)

// Run keeps the driver connected until ctx ends or the client is closed: it
// probes now and then, and opens a new session when the connection is lost. A
// driver that stays away, or that comes back as another one or without
// CONTROLLER_SERVICE, makes Ready fail and every call be refused; it never makes
// Run return.
func (c *Client) Run(ctx context.Context) error {
	for ctx.Err() == nil && !c.isClosed() {
		s := c.current()
		if s == nil {
			// Its error says why ctx or the client ended the wait, no more.
			_ = c.connect(ctx, true)
			continue
		}
		c.watch(ctx, s)
	}
	return nil
}

func (c *Client) current() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// watch returns when the session is over or ctx ends.
func (c *Client) watch(ctx context.Context, s *session) {
	watchCtx, cancel := context.WithCancel(ctx)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		s.waitLost(watchCtx)
	}()
	defer func() {
		cancel()
		<-lost
	}()
	ticker := c.cfg.Clock.NewTicker(c.cfg.ProbeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-lost:
			if ctx.Err() == nil {
				c.lose(ctx, s)
			}
			return
		case <-ticker.C():
			c.check(ctx, s)
		}
	}
}

// lose gives the session up.
func (c *Client) lose(ctx context.Context, s *session) {
	s.retire()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != s || c.closed {
		return
	}
	c.setLocked(nil, &Problem{
		What: fmt.Sprintf("the connection to the driver at %s was lost", c.path),
		Do:   "it is being opened again; see whether the driver's container runs",
	})
	klog.FromContext(ctx).Info("Lost the connection to the driver", "driver", c.name, "address", c.path)
}

// check probes a driver that is connected. A failure makes the client not
// ready, but calls may go on: they tell for themselves how they fare.
func (c *Client) check(ctx context.Context, s *session) {
	err := c.probe(ctx, s)
	if ctx.Err() != nil || s.conn.GetState() != connectivity.Ready {
		return // the end, or the loss, of the connection is told elsewhere.
	}
	before := c.Ready()
	c.setProblem(s, err)
	logger := klog.FromContext(ctx)
	switch {
	case err != nil && before == nil:
		logger.Info("Driver is connected but not ready", "reason", err.Error())
	case err == nil && before != nil:
		logger.Info("Driver is ready again", "address", c.path)
	}
	var call *CallError
	if errors.As(err, &call) && call.Code == codes.DeadlineExceeded && s.replaced(c.path) {
		// The process at the other end hangs, and another one has taken the
		// path over: nothing would ever end this connection.
		logger.Info("Leaving a driver that hangs for the one that took its socket over", "address", c.path)
		s.dialer.sever()
	}
}
