package csiclient

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
)

// Client is the driver at one socket. Connect opens it, Run keeps it open; all
// other methods may be called at any time and from any goroutine.
type Client struct {
	cfg     Config
	path    string
	metrics *instruments

	mu sync.Mutex
	// session is nil while no driver is connected that may be called.
	session *session
	// problem is why Ready fails, nil if it does not.
	problem error
	// name is the driver's once it was first heard, and never another.
	name    string
	caps    Capabilities
	changed chan struct{}
	closed  bool
}

// New checks the configuration and prepares a client; it opens nothing yet.
func New(cfg Config) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring the CSI client: %w", err)
	}
	path, err := socketPath(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("configuring the CSI client: %w", err)
	}
	instruments, err := newInstruments(cfg.Registry)
	if err != nil {
		return nil, fmt.Errorf("configuring the CSI client: %w", err)
	}
	return &Client{
		cfg:     cfg,
		path:    path,
		metrics: instruments,
		problem: &Problem{What: "the driver at " + path + " is not connected yet", Do: "wait for it"},
		changed: make(chan struct{}),
	}, nil
}

// Ready is nil while the driver is connected, is the same as at first and says
// that it is ready; else it tells what is wrong and what to do.
func (c *Client) Ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Name is the driver's name, empty before Connect has heard it.
func (c *Client) Name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.name
}

// Capabilities is what the driver said it can do when it was last connected.
func (c *Client) Capabilities() Capabilities {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caps
}

// Changed returns a channel that is closed when Ready, Name or Capabilities
// next give something else. Take the channel first and look afterwards.
func (c *Client) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Close ends the connection for good. Calls in flight are still answered; new
// ones are refused.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.session != nil {
		c.session.retire()
	}
	c.setLocked(nil, errClosed)
	return nil
}

// setLocked stores a new state, with c.mu held, and tells those that wait.
func (c *Client) setLocked(s *session, problem error) {
	same := c.session == s && sameText(c.problem, problem)
	c.session, c.problem = s, problem
	if same {
		return
	}
	connected := 0.0
	if s != nil {
		connected = 1
	}
	c.metrics.connected.Set(connected)
	close(c.changed)
	c.changed = make(chan struct{})
}

// setProblem changes why the client is not ready, nil for ready, as long as s
// is the session it concerns.
func (c *Client) setProblem(s *session, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == s && !c.closed {
		c.setLocked(s, problem)
	}
}

func sameText(a, b error) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.Error() == b.Error()
}

// acquire returns the session for a call, held until its release; or, at once,
// an error with OutcomeRetry when there is none.
func (c *Client) acquire(method string) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil && c.session.hold() {
		return c.session, nil
	}
	// A session may be retired a moment before it is replaced by its problem.
	problem := c.problem
	if problem == nil {
		problem = errSessionOver
	}
	c.metrics.outcome(method, neverSent.outcome)
	return nil, &CallError{
		Method:  method,
		Code:    codes.Unavailable,
		Message: oneLine(problem.Error(), maxMessage),
		Why:     neverSent.why,
		outcome: neverSent.outcome,
	}
}
