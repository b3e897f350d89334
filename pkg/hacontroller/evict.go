package hacontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

const (
	// A refused eviction is tried again after this, doubling.
	evictAgainFirst = time.Second
	evictAgainMax   = 15 * time.Second
	// A round of asking that ended is begun again after this, doubling.
	askAgainFirst = 30 * time.Second
	askAgainMax   = 10 * time.Minute

	// The end of a walk that was only asked for is watched for so many deadlines.
	watchAsked = 10

	graceWithoutSpec = 30 * time.Second
)

// evictGrace is how long an evicted pod may take: its own period, at most limit.
// Never below a second, since 0 would remove the object while it still runs.
func evictGrace(pod *v1.Pod, limit time.Duration) time.Duration {
	grace := graceWithoutSpec
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	return max(min(grace, limit), time.Second).Truncate(time.Second)
}

// evicted classifies the answer to an eviction. again is true when the pod that
// was read is not there any more.
func evicted(err error) (refusal Reason, again bool) {
	switch {
	case err == nil:
		return "", false
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return "", true
	case apierrors.IsTooManyRequests(err):
		// Both a budget and an overloaded server answer 429. Only the budget
		// names itself as the cause, and older servers do so in the message.
		if apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) || strings.Contains(err.Error(), "disruption budget") {
			return ReasonDisruptionBudget, false
		}
		return ReasonThrottled, false
	case apierrors.IsInternalError(err) && strings.Contains(err.Error(), "PodDisruptionBudget"):
		return ReasonSeveralBudgets, false
	case apierrors.IsForbidden(err):
		return ReasonEvictionForbidden, false
	}
	return ReasonEvictionFailed, false
}

// ask begins to evict the pods of a walk that are due. Nobody waits for the
// answers, which may take long when many pods go at once: what fails meanwhile on
// the same node must not wait for them either.
func (hac *haController) ask(ctx context.Context, w *walk) {
	now := hac.clock.Now()
	t := w.track
	var due []*v1.Pod
	t.mu.Lock()
	begins := t.askedSince.IsZero()
	if begins {
		t.askedSince = now
	}
	for _, pod := range w.pods {
		a := t.asks[pod.UID]
		if pod.DeletionTimestamp == nil && !a.running && !now.Before(a.next) {
			a.running = true
			due = append(due, pod)
		}
		t.asks[pod.UID] = a // the round is about this pod, whoever stops it
	}
	t.mu.Unlock()
	if begins {
		// However the pods go, asked, by somebody else or not before the round
		// ends: the end of the move is told.
		t.finish(w, now.Add(watchAsked*hac.evictDeadline))
	}
	hac.evicting.Add(int32(len(due)))
	for _, pod := range due {
		hac.calls.Go(func() { hac.askPod(ctx, w, pod) })
	}
}

// askPod evicts one pod and remembers the answer.
func (hac *haController) askPod(ctx context.Context, w *walk, pod *v1.Pod) {
	err := caught(hac.metrics, func() error { return hac.evict(ctx, pod, evictGrace(pod, hac.evictGraceMax)) })
	hac.evicting.Add(-1)
	if ctx.Err() != nil {
		return
	}
	refusal, gone := evicted(err)
	now := hac.clock.Now()
	t := w.track
	t.mu.Lock()
	a := t.asks[pod.UID]
	a.running = false
	a.reason = refusal
	a.next = now.Add(hac.evictDeadline)
	if refusal != "" {
		a.next = now.Add(doubling(evictAgainFirst, evictAgainMax, a.tries))
		if s, ok := apierrors.SuggestsClientDelay(err); ok && s > 0 {
			a.next = now.Add(min(time.Duration(s)*time.Second, evictAgainMax))
		}
	}
	a.tries++
	t.asks[pod.UID] = a
	t.mu.Unlock()

	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(pod))
	switch {
	case errors.Is(err, errNotLeader):
	case refusal == ReasonEvictionFailed:
		logger.Error(fmt.Errorf("evicting pod: %w", err), "Failed to evict, will retry")
	case refusal != "":
		logger.V(1).Info("Eviction is refused for now", "reason", refusal, "tries", a.tries)
	case !gone:
		hac.settle(pod)
		hac.reached(ctx, t, w.pvs(), MilestoneAsked)
		hac.event(pod, v1.EventTypeWarning, PodEvictEventReason, "Evicted, since a volume that it uses fails on node %s", w.node)
		return // its end wakes the node
	}
	if gone {
		hac.queue.Add(w.node)
		return
	}
	hac.queue.AddAfter(w.node, a.next.Sub(now))
}
