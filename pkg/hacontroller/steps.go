package hacontroller

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// result is what a step leaves behind.
type result struct {
	// holding: the walk waits for the node's hold.
	holding bool
	// again: what was read is outdated, look again at once.
	again bool
	// wait is the longest time until the next look; 0: the interval.
	wait time.Duration
}

// advance takes the next step of a walk. Only the record is followed by another
// step at once: it was written with the version that was read, so nothing can
// have changed in between.
func (hac *haController) advance(ctx context.Context, l *live, w *walk) (result, error) {
	d := decide(hac.view(w, l))
	if d.step == stepRecord {
		if err := hac.record(ctx, l, w); err != nil {
			return result{}, err
		}
		d = decide(hac.view(w, l))
	}
	switch d.step {
	case stepRefuse:
		hac.refuseWalk(ctx, l, w, d.reason, RefusedEventReason)
		return result{wait: d.wait}, nil
	case stepEnd:
		return hac.end(ctx, l, w, d.reason), nil
	case stepWait, stepDone:
		return result{wait: d.wait}, nil
	}
	if d.step == stepAsk {
		hac.ask(ctx, w)
		return result{wait: hac.evictDeadline}, nil
	}
	for _, pod := range w.pods {
		hac.settle(pod)
	}
	switch d.step {
	case stepDrained:
		return hac.drain(ctx, w), nil
	case stepFence:
		return hac.fence(ctx, l, w, d)
	case stepPods:
		return result{again: true}, hac.removePods(ctx, w)
	case stepAttachments:
		return result{again: true}, hac.removeAttachments(ctx, w)
	case stepHold:
		// holdAll comes before every other step of a pass: it is wanted anew, or
		// it failed and its error is returned from there.
		if pause := w.track.holdPause(hac.clock.Now()); pause > 0 {
			return result{holding: true, wait: pause}, nil
		}
		return result{holding: true, again: w.record != nil && l.node != nil && held(l.node, hac.driver)}, nil
	default:
		return result{again: true}, nil
	}
}

// refuseWalk shows a refusal where people look: on the pods, else on the
// attachments.
func (hac *haController) refuseWalk(ctx context.Context, l *live, w *walk, reason Reason, eventReason string) {
	if w.record == nil {
		if pod, veto := hac.veto(w, l.node != nil && kube.NodeReady(l.node)); veto == reason && pod != nil {
			hac.refuse(ctx, pod, reason, eventReason)
			return
		}
	}
	for _, pod := range w.pods {
		hac.refuse(ctx, pod, reason, eventReason)
	}
	if len(w.pods) > 0 {
		return
	}
	for _, va := range w.vas {
		hac.refuse(ctx, va, reason, eventReason)
	}
}

// end gives up this round of asking, which left nothing that cannot be undone.
// The next round begins after a pause that doubles.
func (hac *haController) end(ctx context.Context, l *live, w *walk, reason Reason) result {
	hac.refuseWalk(ctx, l, w, reason, EndedEventReason)
	now := hac.clock.Now()
	t := w.track
	t.mu.Lock()
	defer t.mu.Unlock()
	pause := doubling(askAgainFirst, askAgainMax, t.rounds)
	t.rounds++
	t.notBefore = now.Add(pause)
	t.askedSince = time.Time{}
	clear(t.asks)
	return result{wait: pause}
}

// drain ends a walk that was only asked for: the pods are gone, and the detach
// takes its usual way. It is watched, and reported when the attachments are
// gone.
func (hac *haController) drain(ctx context.Context, w *walk) result {
	hac.reached(ctx, w.track, w.pvs(), MilestonePodsGone)
	w.track.finish(w, time.Time{})
	hac.mu.Lock()
	defer hac.mu.Unlock()
	for _, m := range w.marks {
		m.drained = hac.clock.Now()
	}
	return result{}
}

// record writes the plan on every attachment of the closure that has none.
func (hac *haController) record(ctx context.Context, l *live, w *walk) error {
	rec := w.record
	if rec == nil {
		rec = &volume.FenceRecord{
			Node: w.node, Time: metav1.NewTime(hac.clock.Now()), Targets: w.targets,
			Reason: fmt.Sprintf("volumes %v fail on node %s", w.pvs(), w.node),
		}
		if l.node != nil {
			rec.BootID = l.node.Status.NodeInfo.BootID
		}
	}
	value, err := rec.Encode()
	if err != nil {
		return err
	}
	w.record = rec
	w.track.finish(w, time.Time{})
	err = each(hac.metrics, w.vas, func(i int, va *storagev1.VolumeAttachment) error {
		if volume.Fenced(va) {
			return nil
		}
		updated, err := hac.recordVA(ctx, va, value)
		if err != nil {
			return fmt.Errorf("writing the fence record on VolumeAttachment %s: %w", va.Name, err)
		}
		w.vas[i] = updated
		l.putVA(updated)
		return nil
	})
	if err != nil {
		return err
	}
	hac.reached(ctx, w.track, w.pvs(), MilestoneRecorded)
	return nil
}

// removePods marks the pods Failed and deletes them. The node cannot write
// their volumes any more, so nothing is lost by not waiting for it.
func (hac *haController) removePods(ctx context.Context, w *walk) error {
	return each(hac.metrics, w.pods, func(_ int, pod *v1.Pod) error {
		if forced(pod) {
			return nil
		}
		if err := hac.markFailed(ctx, w, pod); err != nil {
			return err
		}
		deleted, err := hac.forceDelete(ctx, pod)
		if deleted {
			hac.reached(ctx, w.track, w.pvs(), MilestonePodDeleted)
		}
		return err
	})
}

// markFailed tells the pod's owner of a disruption. Where that is not permitted
// the pod is deleted all the same: it must not stay for want of a nicety.
func (hac *haController) markFailed(ctx context.Context, w *walk, pod *v1.Pod) error {
	if pod.Status.Phase == v1.PodFailed {
		return nil
	}
	err := hac.failPod(ctx, pod, w.record.Reason)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		klog.FromContext(ctx).Error(err, "Failed to mark a pod as disrupted, deleting it without", "pod", klog.KObj(pod))
		return nil
	}
	return fmt.Errorf("marking pod %s as disrupted: %w", podName(pod), err)
}

// removeAttachments deletes the attachments back to back.
func (hac *haController) removeAttachments(ctx context.Context, w *walk) error {
	hac.reached(ctx, w.track, w.pvs(), MilestonePodsGone)
	w.track.finish(w, time.Time{})
	err := each(hac.metrics, w.vas, func(_ int, va *storagev1.VolumeAttachment) error {
		if va.DeletionTimestamp != nil {
			return nil
		}
		return hac.detach(ctx, va)
	})
	if err != nil {
		return err
	}
	hac.reached(ctx, w.track, w.pvs(), MilestoneVADeleted)
	return nil
}
