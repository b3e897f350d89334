package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// Controller attaches and detaches the volumes of one driver. See the package.
type Controller struct {
	cfg       Config
	finalizer string
	ledger    *ledger
	metrics   *controllerMetrics

	attachLane, detachLane *lane

	vaInformer, pvInformer, csiNodeInformer, nodeInformer cache.SharedIndexInformer

	pvs      corelisters.PersistentVolumeLister
	nodes    corelisters.NodeLister
	csiNodes storagelisters.CSINodeLister

	started atomic.Bool
	drain   drain
	// rebuilt is closed once the ledger knows all that the API knows, stopped
	// once Run has returned.
	rebuilt, stopped chan struct{}
}

// New makes a Controller and asks the factory for its informers, which the
// caller starts. The error tells what is wrong with the config.
func New(cfg Config) (*Controller, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	core, storage := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1()
	c := &Controller{
		cfg:             cfg,
		finalizer:       FinalizerName(cfg.DriverName),
		metrics:         newMetrics(),
		attachLane:      newLane("attach", cfg.Clock, cfg.RetryIntervalStart, cfg.RetryIntervalMax),
		detachLane:      newLane("detach", cfg.Clock, cfg.RetryIntervalStart, cfg.RetryIntervalMax),
		vaInformer:      storage.VolumeAttachments().Informer(),
		pvInformer:      core.PersistentVolumes().Informer(),
		csiNodeInformer: storage.CSINodes().Informer(),
		nodeInformer:    core.Nodes().Informer(),
		pvs:             core.PersistentVolumes().Lister(),
		nodes:           core.Nodes().Lister(),
		csiNodes:        storage.CSINodes().Lister(),
		rebuilt:         make(chan struct{}),
		stopped:         make(chan struct{}),
	}
	c.ledger = newLedger(c.finalizer)
	if err := c.register(cfg.Registry); err != nil {
		return nil, fmt.Errorf("registering metrics of attach: %w", err)
	}
	return c, nil
}

// Run attaches and detaches until Drain is called or ctx ends, and waits for its
// workers and for every call to the driver. It is to be called once, when the
// lease has been won. Calls in flight are cancelled with ctx, and so become
// uncertain: it is to end only when the lease is lost, or when a drain takes too
// long. Run returns nil after either.
func (c *Controller) Run(ctx context.Context) error {
	if c.started.Swap(true) {
		return errors.New("attach: Run was called twice")
	}
	defer close(c.stopped)
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("attach"))
	for _, l := range []*lane{c.attachLane, c.detachLane} {
		l.open()
		defer l.shutDown()
	}
	intake, stop := c.drain.intake(ctx)
	defer stop()
	began := c.cfg.Clock.Now()

	if !cache.WaitForCacheSync(intake.Done(), c.vaInformer.HasSynced, c.pvInformer.HasSynced, c.csiNodeInformer.HasSynced, c.nodeInformer.HasSynced) {
		return nil
	}
	unsubscribe, err := c.rebuild(intake, began)
	if err != nil {
		return err
	}
	defer unsubscribe()
	if intake.Err() != nil {
		return nil
	}
	close(c.rebuilt)

	var workers sync.WaitGroup
	for range c.cfg.Workers {
		workers.Go(func() { c.worker(ctx, c.attachLane) })
		workers.Go(func() { c.worker(ctx, c.detachLane) })
	}
	klog.FromContext(ctx).Info("Started", "driver", c.cfg.DriverName, "workers", c.cfg.Workers, "trivial", c.cfg.Trivial)
	<-intake.Done()
	c.Drain()
	c.attachLane.shutDown()
	c.detachLane.shutDown()
	workers.Wait()
	c.drain.calls.Wait()
	return nil
}

// rebuild fills the ledger from the API: first by a live list, since the
// informer of a standby may lag behind the last writes of the former leader,
// then by the informer's events.
func (c *Controller) rebuild(ctx context.Context, began time.Time) (unsubscribe func(), err error) {
	c.ledger.holdOffUntil = began.Add(c.cfg.HoldOff)
	for c.listLive(ctx) != nil {
		select {
		case <-ctx.Done():
			return func() {}, nil
		case <-c.cfg.Clock.After(c.cfg.RetryIntervalStart):
		}
	}
	synced, unsubscribe, err := c.subscribe()
	if err != nil {
		unsubscribe()
		return nil, fmt.Errorf("watching for attachments: %w", err)
	}
	cache.WaitForCacheSync(ctx.Done(), synced...)
	return unsubscribe, nil
}

func (c *Controller) listLive(ctx context.Context) error {
	listCtx, cancel := context.WithTimeout(ctx, max(c.cfg.Timeout, time.Minute))
	defer cancel()
	list, err := c.cfg.Client.StorageV1().VolumeAttachments().List(listCtx, metav1.ListOptions{})
	if err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to list VolumeAttachments, trying again")
		}
		return err
	}
	for i := range list.Items {
		c.onAttachment(list.Items[i].DeepCopy())
	}
	return nil
}
