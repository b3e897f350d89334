package hacontroller

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// errNotLeader ends a pass: the lease went away between two steps.
var errNotLeader = errors.New("not the leader")

// work takes nodes from the queue until it is shut down or ctx ends.
func (hac *haController) work(ctx context.Context) {
	stop := context.AfterFunc(ctx, hac.queue.ShutDown)
	defer stop()
	for {
		node, quit := hac.queue.Get()
		if quit {
			return
		}
		hac.process(ctx, node)
	}
}

// process makes one pass over a node and queues the next one.
func (hac *haController) process(ctx context.Context, node string) {
	defer hac.queue.Done(node)
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx).WithValues("node", node)
	var wait time.Duration
	err := caught(hac.metrics, func() (err error) {
		wait, err = hac.sync(klog.NewContext(ctx, logger), node)
		return err
	})
	switch {
	case err == nil:
		hac.queue.Forget(node)
	case ctx.Err() != nil:
		return
	case errors.Is(err, errNotLeader):
		hac.queue.Forget(node)
		wait = hac.interval
	case apierrors.IsConflict(err):
		logger.V(2).Info("Objects changed meanwhile, starting over", "reason", err.Error())
		hac.queue.AddRateLimited(node)
		return
	default:
		logger.Error(err, "Failed to work on node, will retry", "retries", hac.queue.NumRequeues(node))
		hac.queue.AddRateLimited(node)
		return
	}
	if wait > 0 {
		hac.queue.AddAfter(node, wait)
	}
}

// sync is one pass over a node, in whichever of the two ways.
func (hac *haController) sync(ctx context.Context, node string) (time.Duration, error) {
	if !hac.leads() {
		if hac.dropGone(ctx, node) == 0 {
			return 0, nil
		}
		return hac.interval, nil
	}
	if hac.targeter == nil {
		return hac.syncVouched(ctx, node)
	}
	return hac.syncNode(ctx, node)
}
