package csiclient

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Waiting for a driver: the pauses double between these, so that a driver which
// restarts is found within about a second. A unix socket costs nothing to try.
const (
	minPause = 50 * time.Millisecond
	maxPause = time.Second
	jitter   = 0.2
	// waitLogInterval is how often the wait is logged.
	waitLogInterval = 10 * time.Second
)

// Connect waits until the driver is connected, ready and known by name and
// capabilities. It gives up when ctx ends, with an error that says what was
// wrong last, and at once when waiting cannot help (IsPermanent).
//
// Connect comes before Run, not beside it.
func (c *Client) Connect(ctx context.Context) error {
	if err := c.connect(ctx, false); err != nil {
		return fmt.Errorf("connecting to the CSI driver: %w", err)
	}
	return nil
}

// connect tries until it succeeds or ctx ends; unless it is stubborn, also
// until it meets a permanent problem.
func (c *Client) connect(ctx context.Context, stubborn bool) error {
	logger := klog.FromContext(ctx)
	now := c.cfg.Clock.Now
	nextLog := now()
	var problem error
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := c.attempt(ctx)
		if err == nil {
			return nil
		}
		if c.isClosed() {
			return errClosed
		}
		// An attempt that ctx cut short says less than the one before it.
		if problem == nil || ctx.Err() == nil || IsPermanent(err) {
			problem = err
			c.setProblem(nil, problem)
		}
		if IsPermanent(problem) && !stubborn {
			return problem
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: gave up waiting: %w", problem, context.Cause(ctx))
		}
		if t := now(); !t.Before(nextLog) {
			logger.Info("Waiting for the driver", "address", c.path, "reason", problem.Error())
			nextLog = t.Add(waitLogInterval)
		}
		sleep(ctx, c.cfg.Clock, wait.Jitter(pause, jitter))
	}
}

// attempt opens one session and has the driver introduce itself.
func (c *Client) attempt(ctx context.Context) error {
	socket, problem := inspectSocket(c.path)
	if problem != nil {
		return problem
	}
	s, err := c.newSession(socket)
	if err != nil {
		return err
	}
	if err := c.introduce(ctx, s); err != nil {
		s.retire()
		return err
	}
	return c.adopt(ctx, s)
}

// adopt makes a session the one that calls use.
func (c *Client) adopt(ctx context.Context, s *session) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		s.retire()
		return errClosed
	}
	logger := klog.FromContext(ctx)
	first := c.name == ""
	if first {
		c.name = s.name
		if c.cfg.Metrics != nil {
			c.cfg.Metrics.SetDriverName(s.name)
		}
		logger.Info("Connected to the driver", "driver", s.name, "capabilities", s.caps.String(), "health", s.caps.dialect().name)
	} else {
		c.metrics.reconnects.Inc()
		logger.Info("Reconnected to the driver", "driver", s.name)
		if !s.caps.Equal(c.caps) {
			logger.Info("Driver changed its capabilities", "driver", s.name, "before", c.caps.String(), "now", s.caps.String())
		}
	}
	c.caps = s.caps
	c.setLocked(s, nil)
	return nil
}

func (c *Client) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// sleep returns after d by the clock, or when ctx ends.
func sleep(ctx context.Context, clk clock.Clock, d time.Duration) {
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}
