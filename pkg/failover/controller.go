package failover

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/internal/runner"
)

const (
	// settle is how long informer events are collected before the next look.
	settle = 50 * time.Millisecond
	// sendAgain is when a name goes out once more that is still to be moved, in
	// case its receiver gave up on it.
	sendAgain = time.Minute
)

// Controller decides again whenever something relevant changes.
type Controller struct {
	cfg       Config
	gatherer  *gatherer
	outbox    *outbox
	announcer *announcer
	metrics   *failoverMetrics
	pokes     *pokes

	// mu makes looks follow one another, each with the memory of the last.
	mu      sync.Mutex
	running bool
	started time.Time
	memory  Memory
	last    Decision
	// sent tells for which nodes, and when, a PV's name was sent last.
	sent map[string]sending
	// told is what was last logged and counted per key.
	told map[string]string
}

type sending struct {
	nodes []string
	at    time.Time
}

// New validates the configuration and takes the informers; the caller starts
// them. It registers handlers and metrics, and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring failover: %w", err)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	c := &Controller{
		cfg:       cfg,
		outbox:    newOutbox(),
		announcer: newAnnouncer(cfg.Recorder),
		sent:      map[string]sending{},
		told:      map[string]string{},
	}
	var err error
	if c.metrics, err = newMetrics(cfg.Registry); err != nil {
		return nil, err
	}
	if c.gatherer, err = newGatherer(cfg.DriverName, cfg.Informers); err != nil {
		return nil, err
	}
	if c.pokes, err = newPokes(cfg.Informers); err != nil {
		return nil, err
	}
	return c, nil
}

// Run decides until ctx ends, and returns once its goroutines have. The
// hold-off starts with it.
func (c *Controller) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithName("failover")
	ctx = klog.NewContext(ctx, logger)
	if c.cfg.Mode == ModeOff {
		logger.Info("Failover is switched off")
		<-ctx.Done()
		return nil
	}
	c.mu.Lock()
	c.started = c.cfg.Clock.Now()
	c.mu.Unlock()
	if !cache.WaitForCacheSync(ctx.Done(), c.pokes.synced...) {
		return nil
	}
	c.setRunning(true)
	defer c.setRunning(false)
	logger.Info("Started", "mode", c.cfg.Mode, "fence", c.cfg.Fence, "holdOff", c.cfg.HoldOff)

	var wg sync.WaitGroup
	defer wg.Wait()
	if c.cfg.Mode == ModeEnforce {
		wg.Go(func() { c.outbox.run(ctx, c.cfg.Failing) })
	}
	c.loop(ctx)
	return nil
}

func (c *Controller) setRunning(running bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = running
}

// loop looks at once when a verdict changes, and shortly after an object did.
func (c *Controller) loop(ctx context.Context) {
	timer := c.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	var due time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.cfg.Verdicts.Changed():
		case <-timer.C():
		case <-c.pokes.c:
			soon := c.cfg.Clock.Now().Add(settle)
			if due.IsZero() || soon.Before(due) {
				due = soon
				timer.Reset(settle)
			}
			continue
		}
		due = c.look(ctx)
		timer.Stop()
		if !due.IsZero() {
			timer.Reset(max(due.Sub(c.cfg.Clock.Now()), settle))
		}
	}
}

// look makes one pass. A panic in it decides nothing, and is tried again later:
// what was decided before goes on.
func (c *Controller) look(ctx context.Context) (due time.Time) {
	err := runner.Safely(func() error { due = c.pass(ctx); return nil })
	var p *runner.PanicError
	if errors.As(err, &p) {
		c.metrics.panics.Inc()
		klog.FromContext(ctx).Error(err, "Caught a panic while deciding, looking again later", "stack", string(p.Stack))
		return c.cfg.Clock.Now().Add(lookAgain)
	}
	return due
}

// pass looks once and makes the outcome known. It returns when to look again.
func (c *Controller) pass(ctx context.Context) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, err := c.decide()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot look at the cluster")
		return c.cfg.Clock.Now().Add(lookAgain)
	}
	now := c.cfg.Clock.Now()
	c.pokes.watch(d)
	c.dispatch(d, now)
	c.tell(ctx, d)
	c.announcer.announce(c.cfg.Mode, d, now)
	c.announcer.breaker(c.cfg.DriverName, c.gatherer.driverUID(), d.Brake)
	if again := now.Add(announceAgain); len(d.Answers) > 0 && (d.Look.IsZero() || again.Before(d.Look)) {
		return again
	}
	return d.Look
}

// decide takes a fresh snapshot and keeps what the decision leaves. The caller
// holds mu.
func (c *Controller) decide() (Decision, error) {
	begun := c.cfg.Clock.Now()
	s, err := c.gatherer.gather(c.cfg.Policy, c.started, c.cfg.Verdicts.Verdicts(), c.memory)
	if err != nil {
		return Decision{}, fmt.Errorf("gathering a snapshot: %w", err)
	}
	d := Decide(s, begun)
	c.memory, c.last = d.Memory, d
	c.metrics.seen(d, c.cfg.Clock.Since(begun))
	return d, nil
}

// dispatch puts out the names that are to be moved and takes back the others.
// One name speaks for a closure; it goes out anew when another node of the
// volume fails.
func (c *Controller) dispatch(d Decision, now time.Time) {
	if c.cfg.Mode != ModeEnforce {
		return
	}
	wanted := map[string][]string{}
	for _, a := range d.Answers {
		if a.Action == ActionMove && a.Lead {
			wanted[a.PV] = append(wanted[a.PV], a.Key.Node)
		}
	}
	for _, pv := range slices.Sorted(maps.Keys(wanted)) {
		last, ok := c.sent[pv]
		news := slices.ContainsFunc(wanted[pv], func(node string) bool { return !slices.Contains(last.nodes, node) })
		if !ok || news || now.Sub(last.at) >= sendAgain {
			last.at = now
			c.outbox.put(pv)
		}
		c.sent[pv] = sending{nodes: wanted[pv], at: last.at}
	}
	for pv := range c.sent {
		if wanted[pv] == nil {
			delete(c.sent, pv)
			c.outbox.take(pv)
		}
	}
}

// tell logs and counts every answer once until it changes.
func (c *Controller) tell(ctx context.Context, d Decision) {
	logger := klog.FromContext(ctx)
	current := map[string]bool{}
	for _, a := range d.Answers {
		key := a.Key.Node + "/" + string(a.Key.Handle)
		current[key] = true
		primary := a.Primary()
		state := string(a.Action) + "/" + string(primary.Code)
		if c.told[key] == state {
			continue
		}
		c.told[key] = state
		c.metrics.decided(a)
		logger.Info("Decided", "action", a.Action, "reason", primary.Code, "message", primary.Message,
			"volumeHandle", a.Key.Handle, "node", a.Key.Node, "persistentVolume", a.PV,
			"pods", len(a.Closure.Pods), "volumes", len(a.Closure.Volumes))
	}
	for key := range c.told {
		if !current[key] {
			delete(c.told, key)
			logger.Info("Settled, nothing is left to decide", "key", key)
		}
	}
}

// errNotRunning is why nothing can be told outside Run.
var errNotRunning = errors.New("failover is not running")
