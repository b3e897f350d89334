package hacontroller

import (
	"context"
	"errors"
	"math/bits"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

// conflictsExpected is how many passes in a row may meet objects that changed.
const conflictsExpected = 4

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
	case conflicts(err):
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

// conflicts reports whether err is a conflict, or many and nothing else.
func conflicts(err error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return apierrors.IsConflict(err)
	}
	return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !conflicts(err) })
}

// stepEnded makes a step that fails seen: at first, and then each time the number
// of passes in a row has doubled. A conflict is how it is told that something
// changed meanwhile, and is seen only when it does not end.
func (hac *haController) stepEnded(ctx context.Context, w *walk, err error) {
	if ctx.Err() != nil || errors.Is(err, errNotLeader) {
		return
	}
	w.track.mu.Lock()
	w.track.failures++
	if err == nil {
		w.track.failures = 0
	}
	n := w.track.failures
	w.track.mu.Unlock()
	if bits.OnesCount(uint(n)) != 1 || n < conflictsExpected && conflicts(err) {
		return
	}
	hac.metrics.failures.Inc()
	var about []runtime.Object
	for _, pod := range w.pods {
		about = append(about, pod)
	}
	if len(about) == 0 {
		for _, va := range w.vas {
			about = append(about, va)
		}
	}
	for _, obj := range about {
		hac.event(obj, v1.EventTypeWarning, StepFailedEventReason,
			"The next step of moving it off node %s fails and is tried again, %d times so far: %v", w.node, n, err)
	}
}
