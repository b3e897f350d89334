package attach

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	lanes *lanes

	vaInformer, pvInformer, csiNodeInformer, nodeInformer cache.SharedIndexInformer

	pvs      corelisters.PersistentVolumeLister
	nodes    corelisters.NodeLister
	csiNodes storagelisters.CSINodeLister

	orphans orphanage
	guard   guard
	// suspects are VolumeAttachments that another attacher may have written.
	suspects chan *storagev1.VolumeAttachment
	started  atomic.Bool
	drain    drain
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
		lanes:           newLanes(cfg.Clock, cfg.RetryIntervalStart, cfg.RetryIntervalMax),
		vaInformer:      storage.VolumeAttachments().Informer(),
		pvInformer:      core.PersistentVolumes().Informer(),
		csiNodeInformer: storage.CSINodes().Informer(),
		nodeInformer:    core.Nodes().Informer(),
		pvs:             core.PersistentVolumes().Lister(),
		nodes:           core.Nodes().Lister(),
		csiNodes:        storage.CSINodes().Lister(),
		suspects:        make(chan *storagev1.VolumeAttachment, 1),
		rebuilt:         make(chan struct{}),
		stopped:         make(chan struct{}),
	}
	c.ledger = newLedger(cfg.DriverName, cfg.Clock.Now)
	if err := c.register(cfg.Registry); err != nil {
		return nil, fmt.Errorf("registering metrics of attach: %w", err)
	}
	return c, nil
}

// Run attaches and detaches until Drain is called or ctx ends, and waits for its
// workers and for every call to the driver. It is to be called once, when the
// lease has been won. Calls in flight are cancelled with ctx, and so become
// uncertain: it is to end only when the lease is lost, or when a drain takes too
// long. Run returns nil after either, and an error if another attacher is at
// work for the driver, after a drain.
func (c *Controller) Run(ctx context.Context) error {
	if c.started.Swap(true) {
		return errors.New("attach: Run was called twice")
	}
	defer close(c.stopped)
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("attach"))
	c.lanes.open()
	defer c.lanes.shutDown()
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
	for _, l := range c.lanes.all() {
		for range c.cfg.Workers {
			workers.Go(func() { c.worker(ctx, l) })
		}
	}
	workers.Go(func() { c.lanes.watch(intake) })
	workers.Go(func() { c.compare(intake) })
	workers.Go(func() { c.reconcile(intake) })
	klog.FromContext(ctx).Info("Started", "driver", c.cfg.DriverName, "workers", c.cfg.Workers, "trivial", c.cfg.Trivial)
	foreign := c.awaitForeigner(intake)
	c.Drain()
	c.lanes.shutDown()
	workers.Wait()
	c.drain.calls.Wait()
	return foreign
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
	c.dropGhosts(ctx)
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

// dropGhosts forgets what the live list has told of and the informer has seen go
// before it was listened to: it will not tell of that.
func (c *Controller) dropGhosts(ctx context.Context) {
	for _, va := range c.ledger.attachments() {
		obj, known, _ := c.vaInformer.GetStore().GetByKey(va.Name) // it fails for no name
		if is, ok := obj.(*storagev1.VolumeAttachment); known && ok && is.UID == va.UID {
			continue
		}
		live, err := c.liveVA(ctx, va.Name, va.UID)
		for err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-c.cfg.Clock.After(c.cfg.RetryIntervalStart):
			}
			live, err = c.liveVA(ctx, va.Name, va.UID)
		}
		if live == nil && ctx.Err() == nil {
			c.onAttachmentGone(va)
		}
	}
}
