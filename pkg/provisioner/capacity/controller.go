package capacity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// settle is how long the plan waits for more of the same: nodes come in crowds.
const settle = 100 * time.Millisecond

// Controller keeps the CSIStorageCapacity objects of one driver. See the package.
type Controller struct {
	cfg      Config
	metrics  *controllerMetrics
	informer cache.SharedIndexInformer
	// filled reports whether table has all that the informer had at first.
	filled  func() bool
	table   *table
	goals   goals
	backlog *backlog
	access  *access
	changed chan struct{}
	started atomic.Bool
}

// New makes a Controller and asks for the informer of classes, which the caller
// starts. The error tells what is wrong with the config.
func New(cfg Config) (*Controller, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Controller{
		cfg: cfg, table: newTable(), backlog: newBacklog(cfg), access: newAccess(cfg), metrics: newMetrics(),
		changed: make(chan struct{}, 1),
	}
	cfg.Classes.Informer()
	if c.informer, err = newInformer(cfg, c.access); err != nil {
		return nil, err
	}
	registration, err := c.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.onObject,
		UpdateFunc: func(_, obj any) { c.onObject(obj) },
		DeleteFunc: c.onObjectGone,
	})
	if err != nil {
		return nil, fmt.Errorf("watching CSIStorageCapacity objects: %w", err)
	}
	c.filled = registration.HasSynced
	if err := c.register(cfg.Registry); err != nil {
		return nil, fmt.Errorf("registering metrics of capacity: %w", err)
	}
	return c, nil
}

// Run keeps the objects until ctx ends, and waits for its workers. It is to be
// called once, when the lease has been won. While the API server does not let it
// list the objects it waits, see Config.Report. It returns nil at the end of ctx.
func (c *Controller) Run(ctx context.Context) error {
	if c.started.Swap(true) {
		return errors.New("capacity: Run was called twice")
	}
	logger := klog.FromContext(ctx).WithName("capacity")
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	c.access.logger = logger
	queue := c.backlog.open()
	var parts sync.WaitGroup
	defer parts.Wait()
	defer queue.ShutDown()
	defer cancel()

	parts.Go(func() { c.informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), c.filled, c.cfg.Classes.Informer().HasSynced, c.cfg.Segments.HasSynced) {
		return nil
	}
	unsubscribe, err := c.subscribe()
	if err != nil {
		return err
	}
	defer unsubscribe()
	if !c.firstPlan(ctx) {
		return nil
	}
	parts.Go(func() { c.planAgain(ctx) })
	for range c.cfg.Threads {
		parts.Go(func() { c.worker(ctx, queue) })
	}
	logger.Info("Started", "driver", c.cfg.DriverName, "namespace", c.cfg.Namespace, "items", len(c.goals.all()), "pollInterval", c.cfg.PollInterval)
	<-ctx.Done()
	return nil
}

// Refresh has the room looked at that a volume of the class came to or went from:
// in all places that its affinity admits, whatever the class, since classes share
// it; or, without an affinity, everywhere for the class. It never blocks, and does
// nothing while Run does not run.
func (c *Controller) Refresh(class string, affinity *v1.VolumeNodeAffinity) {
	placed := affinity != nil && affinity.Required != nil
	admits := topology.Matcher(affinity)
	answers := map[topology.Segment]bool{}
	for it := range c.goals.all() {
		if !placed || it.segment == (topology.Segment{}) {
			if it.class == class {
				c.backlog.refresh(it)
			}
			continue
		}
		answer, known := answers[it.segment]
		if !known {
			answer = admits(it.segment.Labels())
			answers[it.segment] = answer
		}
		if answer {
			c.backlog.refresh(it)
		}
	}
}

// poke has the plan made anew.
func (c *Controller) poke() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Controller) subscribe() (unsubscribe func(), err error) {
	fromSegments, err := c.cfg.Segments.Subscribe(c.poke)
	if err != nil {
		return nil, fmt.Errorf("watching the segments of the driver: %w", err)
	}
	classes := c.cfg.Classes.Informer()
	registration, err := classes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.onClass,
		UpdateFunc: func(before, after any) {
			c.onClass(before)
			c.onClass(after)
		},
		DeleteFunc: c.onClass,
	})
	if err != nil {
		fromSegments()
		return nil, fmt.Errorf("watching storage classes: %w", err)
	}
	return func() {
		fromSegments()
		_ = classes.RemoveEventHandler(registration) // it fails for another informer's handler only
	}, nil
}

// firstPlan makes the first plan, however long it takes, and has all objects seen
// to that are not in it. It returns false at the end of ctx.
func (c *Controller) firstPlan(ctx context.Context) bool {
	for !c.replan(ctx) {
		if !c.pause(ctx, c.cfg.RetryIntervalStart) {
			return false
		}
	}
	for it, count := range c.table.items() {
		if wanted, _ := c.goals.wants(it); !wanted || count > 1 {
			c.backlog.add(it)
		}
	}
	return true
}

// planAgain makes the plan anew whenever something has changed.
func (c *Controller) planAgain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		}
		if !c.pause(ctx, settle) {
			return
		}
		select {
		case <-c.changed: // it is in this plan
		default:
		}
		if !c.replan(ctx) {
			if !c.pause(ctx, c.cfg.RetryIntervalStart) {
				return
			}
			c.poke()
		}
	}
}

// pause waits; it returns false at the end of ctx.
func (c *Controller) pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c.cfg.Clock.After(d):
		return true
	}
}

// replan makes the plan and has all items seen to that it changes. Without an
// answer from a lister the plan stays as it is.
func (c *Controller) replan(ctx context.Context) bool {
	logger := klog.FromContext(ctx)
	var changed []item
	err := c.caught(logger, func() error {
		segments, err := c.cfg.Segments.Segments()
		if err != nil {
			return fmt.Errorf("finding the segments of the driver: %w", err)
		}
		classes, err := c.cfg.Classes.Lister().List(labels.Everything())
		if err != nil {
			return fmt.Errorf("listing storage classes: %w", err)
		}
		changed = c.goals.set(c.cfg.plan(classes, segments))
		return nil
	})
	if err != nil {
		logger.Error(err, "Failed to tell which CSIStorageCapacity objects there should be, leaving all as they are")
		return false
	}
	for _, it := range changed {
		c.backlog.drop(it)
		c.backlog.add(it)
	}
	if len(changed) > 0 {
		logger.V(2).Info("Places or classes have changed", "changed", len(changed), "items", len(c.goals.all()))
	}
	return true
}
