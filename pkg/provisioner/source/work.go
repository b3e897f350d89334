package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/runner"
)

// Run takes finalizers off until ctx ends. It may be called once.
func (p *Protection) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), p.claims.HasSynced, p.cfg.Volumes.Informer().HasSynced) {
		return nil // ctx ended
	}
	queue := p.open()
	registration, err := p.claims.AddEventHandler(p.handler())
	if err != nil {
		queue.ShutDown()
		return fmt.Errorf("watching claims for their data sources: %w", err)
	}
	var workers sync.WaitGroup
	for range p.cfg.Threads {
		workers.Go(func() {
			for p.next(ctx, queue) {
			}
		})
	}
	p.sweepEach(ctx)
	queue.ShutDown()
	workers.Wait()
	if err := p.claims.RemoveEventHandler(registration); err != nil {
		return fmt.Errorf("no longer watching claims for their data sources: %w", err)
	}
	return nil
}

// open makes the queue, which has goroutines until it is shut down.
func (p *Protection) open() workqueue.TypedRateLimitingInterface[key] {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[key](p.cfg.RetryIntervalStart, p.cfg.RetryIntervalMax),
		workqueue.TypedRateLimitingQueueConfig[key]{Clock: p.cfg.Clock},
	)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = queue
	for k := range p.early {
		queue.Add(k)
	}
	p.early = nil
	return queue
}

// next works on one source. A panic in it is caught and backs the source off: one
// bad object must not stop the others.
func (p *Protection) next(ctx context.Context, queue workqueue.TypedRateLimitingInterface[key]) bool {
	k, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(k)
	var again time.Duration
	err := runner.Safely(func() (err error) {
		again, err = p.look(ctx, k)
		return err
	})
	logger := klog.FromContext(ctx).WithValues("source", k.String())
	var caught *runner.PanicError
	switch {
	case err == nil:
		queue.Forget(k)
		if again > 0 {
			queue.AddAfter(k, again)
		}
		return true
	case errors.As(err, &caught):
		logger.Error(err, "Caught a panic", "stack", string(caught.Stack))
	case ctx.Err() == nil:
		logger.Error(err, "Cannot take the finalizer off a data source that nobody needs; trying again")
	}
	queue.AddRateLimited(k)
	return true
}

// look takes the finalizer off a source that nobody needs. Again is when to look
// again though nothing was heard; zero is not at all.
func (p *Protection) look(ctx context.Context, k key) (again time.Duration, err error) {
	if !p.cfg.IsLeader() {
		return recheckInterval, nil
	}
	if k.kind == Claim && !p.leaves(k) {
		return 0, nil
	}
	// Whoever holds it, or waits for it, is heard of when that ends.
	end, ok := p.holds.beginRemoval(k)
	if !ok {
		return 0, nil
	}
	defer end()
	if waited, err := p.waitedFor(k); err != nil || waited {
		return 0, err
	}
	err = p.edit(ctx, k, func(obj *unstructured.Unstructured) (bool, error) {
		again = 0
		finalizers := obj.GetFinalizers()
		if !slices.Contains(finalizers, k.finalizer()) || k.kind == Claim && obj.GetDeletionTimestamp() == nil {
			return false, nil
		}
		ref := k.ref(obj.GetUID())
		if p.cfg.InUse(ref) {
			again = recheckInterval
			return false, nil
		}
		if ours, err := p.ours(ctx, k, obj); err != nil || !ours {
			return false, err
		}
		if needed, err := p.neededElsewhere(ctx, ref); err != nil || needed {
			again = recheckInterval
			return false, err
		}
		// Asking took a while.
		if waited, err := p.waitedFor(k); err != nil || waited {
			return false, err
		}
		klog.FromContext(ctx).V(2).Info("Nobody needs a data source any more", "source", k.String(), "finalizer", k.finalizer())
		obj.SetFinalizers(slices.DeleteFunc(finalizers, func(f string) bool { return f == k.finalizer() }))
		return true, nil
	})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	return again, err
}

// neededElsewhere asks for the intents of other processes. They speak for claims that
// are gone; for those that are there the informer does, asked before and after.
// Neither speaks for a claim that another process has heard of, and begins for after
// we have asked it, while our informer lags.
func (p *Protection) neededElsewhere(ctx context.Context, ref Ref) (bool, error) {
	where, err := p.cfg.Elsewhere(ctx, ref)
	if err != nil {
		return false, fmt.Errorf("asking who else needs %s: %w", ref, err)
	}
	if where != "" {
		klog.FromContext(ctx).V(2).Info("A data source is kept for a volume that another process makes of it", "source", ref.String(), "where", where)
	}
	return where != "", nil
}

// leaves reports whether a claim is on its way out, by the informer: it tells when
// that changes.
func (p *Protection) leaves(k key) bool {
	obj, found, err := p.claims.GetStore().GetByKey(k.namespace + "/" + k.name)
	claim, ok := obj.(*v1.PersistentVolumeClaim)
	return err == nil && found && ok && leavingSource(claim)
}

// ours reports whether the driver of a source is ours. Of one whose volume or
// content is gone nothing can be made any more, by nobody.
func (p *Protection) ours(ctx context.Context, k key, obj *unstructured.Unstructured) (bool, error) {
	if k.kind == Claim {
		return p.ourClaim(obj)
	}
	name, _, err := unstructured.NestedString(obj.Object, "status", "boundVolumeSnapshotContentName")
	if err != nil {
		return false, fmt.Errorf("reading the status of %s: %w", k, err)
	}
	if name == "" {
		return true, nil
	}
	content, err := p.live.content(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("finding the driver of %s: %w", k, err)
	}
	return content.Spec.Driver == p.cfg.DriverName, nil
}

func (p *Protection) ourClaim(obj *unstructured.Unstructured) (bool, error) {
	name, _, err := unstructured.NestedString(obj.Object, "spec", "volumeName")
	if err != nil {
		return false, fmt.Errorf("reading spec.volumeName: %w", err)
	}
	pv, err := p.volumes.Get(name)
	switch {
	case err == nil && pv.Spec.CSI != nil:
		return pv.Spec.CSI.Driver == p.cfg.DriverName, nil
	case err == nil:
		return pv.Annotations[annMigratedTo] == p.cfg.DriverName, nil
	case !apierrors.IsNotFound(err):
		return false, fmt.Errorf("finding PersistentVolume %s: %w", name, err)
	}
	annotations := obj.GetAnnotations()
	provisioner := annotations[annProvisioner]
	if provisioner == "" {
		provisioner = annotations[annBetaProvisioner]
	}
	return provisioner == "" || provisioner == p.cfg.DriverName, nil
}
