package hacontroller

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// passesPerSync bounds how many steps follow one another without going back to
// the queue; a walk that wants more gets it from there, behind other nodes.
const passesPerSync = 8

// unholdAgain is when a release is tried again that met a changed Node.
const unholdAgain = time.Second

// syncNode takes every walk of a node as far as it goes now.
func (hac *haController) syncNode(ctx context.Context, node string) (time.Duration, error) {
	for range passesPerSync {
		wait, again, err := hac.pass(ctx, node)
		if err != nil || !again {
			return wait, err
		}
	}
	return retryBase, nil
}

// pass reads the node live and takes one step of each of its walks, side by
// side. again asks for another pass at once.
func (hac *haController) pass(ctx context.Context, node string) (wait time.Duration, again bool, err error) {
	left := hac.dropGone(ctx, node)
	asked := hac.asked(ctx, node)
	known := hac.recorded(ctx, node, hac.attachments(vasByNode, node))
	names := hac.vaNames(node, append(known, asked...))
	if len(asked) == 0 && len(names) == 0 && !hac.nodeMatters(node) {
		if hac.settleTracks(ctx, node, nil); left == 0 {
			return 0, false, nil
		}
		return hac.interval, false, nil
	}
	l, err := hac.readLive(ctx, node, names)
	if err != nil {
		return 0, false, err
	}
	walks, err := hac.walksOf(ctx, node, asked, l)
	if err != nil {
		return 0, false, err
	}
	hac.settleTracks(ctx, node, walks)

	results := make([]result, len(walks))
	holdErr := hac.holdAll(ctx, l, walks)
	stepErr := each(hac.metrics, walks, func(i int, w *walk) (err error) {
		results[i], err = hac.advance(ctx, l, w)
		if !results[i].holding {
			hac.stepEnded(ctx, w, err)
		} else if holdErr != nil {
			hac.stepEnded(ctx, w, holdErr)
		}
		return err
	})
	unholdErr := hac.unhold(ctx, l, walks)

	wait = hac.interval
	if apierrors.IsConflict(unholdErr) {
		// Nobody waits for a release as for a move, which a backoff of the whole
		// node would slow down.
		wait, unholdErr = min(wait, unholdAgain), nil
	}
	for _, r := range results {
		again = again || r.again
		if r.wait > 0 {
			wait = min(wait, r.wait)
		}
	}
	return wait, again, errors.Join(holdErr, stepErr, unholdErr)
}

// nodeMatters reports whether the node is held or a person gave a word.
func (hac *haController) nodeMatters(name string) bool {
	node, err := hac.caches.nodeLister.Get(name)
	return err == nil && (held(node, hac.driver) || node.Annotations[volume.AnnotationUnfence] != "")
}

// view is what the decision about w depends on.
func (hac *haController) view(w *walk, l *live) view {
	w.track.mu.Lock()
	defer w.track.mu.Unlock()
	v := view{
		now:           hac.clock.Now(),
		nodeReady:     l.node != nil && kube.NodeReady(l.node),
		canFence:      hac.fencer != nil,
		attachments:   len(w.vas),
		missing:       w.record == nil && hac.unknownAttachment(w),
		askedSince:    w.track.askedSince,
		notBefore:     w.track.notBefore,
		evictDeadline: hac.evictDeadline,
		overridePDB:   hac.overridePDB,
	}
	// A Node that does not exist cannot be held, and nothing is scheduled there.
	v.held = l.node == nil || l.hold.covers(w.pvs(), hac.willFence(w, l))
	for _, va := range w.vas {
		if va.DeletionTimestamp != nil {
			v.deleting++
		}
		if volume.Fenced(va) {
			v.recorded++
		}
		f := w.track.fences[va.UID]
		if f == nil {
			f = &fencing{}
		}
		if f.acked {
			v.fenced++
		} else if !f.running && (v.nextFence.IsZero() || f.next.Before(v.nextFence)) {
			v.nextFence = f.next
		}
	}
	for _, pod := range w.pods {
		a := w.track.asks[pod.UID]
		v.pods = append(v.pods, podView{
			uid: pod.UID, terminating: pod.DeletionTimestamp != nil, forced: forced(pod),
			asking: a.running, refusal: a.reason, next: a.next,
		})
	}
	if w.record == nil {
		_, v.veto = hac.veto(w, v.nodeReady)
	}
	return v
}

// unknownAttachment reports whether a target's attachment is not in the cache:
// then it cannot be told from one that is gone, and a closure must be whole.
func (hac *haController) unknownAttachment(w *walk) bool {
	known := map[types.UID]bool{}
	for _, va := range hac.attachments(vasByNode, w.node) {
		known[va.UID] = true
	}
	return slices.ContainsFunc(w.targets, func(t volume.Target) bool { return !known[t.VolumeAttachmentUID] })
}

// veto finds what forbids the closure, from the live pods: the last look before
// the first step, at what the judge decided from caches.
func (hac *haController) veto(w *walk, ready bool) (*v1.Pod, Reason) {
	for _, pod := range w.pods {
		switch {
		case !hac.selector.selects(pod):
			return pod, ReasonNotSelected
		case !hac.uses(pod, w):
			return pod, ReasonNotUsingVolume
		case hac.strict && hac.outOfScope(pod) != "":
			return pod, hac.outOfScope(pod)
		}
	}
	for _, pod := range w.strangers {
		if ready && pod.DeletionTimestamp != nil {
			continue // its kubelet is stopping it
		}
		return pod, ReasonClosureChanged
	}
	return nil, ""
}

// settleTracks reports the walks that came to their end, and forgets those of
// node that are neither in walks nor still being watched to their end.
func (hac *haController) settleTracks(ctx context.Context, node string, walks []*walk) {
	existing := map[types.UID]bool{}
	for _, va := range hac.attachments(vasByNode, node) {
		existing[va.UID] = true
	}
	keep := map[types.UID]bool{}
	for _, w := range walks {
		keep[w.key()] = true
	}
	hac.mu.Lock()
	tracks := maps.Clone(hac.tracks)
	hac.mu.Unlock()
	for key, t := range tracks {
		vas, pvs, finishing := t.waitsFor(hac.clock.Now())
		if t.node != node || keep[key] || !finishing {
			continue
		}
		if slices.ContainsFunc(vas, func(uid types.UID) bool { return existing[uid] }) {
			keep[key] = true
			continue
		}
		hac.reached(ctx, t, pvs, MilestoneDone)
		klog.FromContext(ctx).Info("Finished failover", "persistentVolumes", pvs, "timeline", t.timeline())
		hac.event(&v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: node, UID: types.UID(node)}, v1.EventTypeNormal, DoneEventReason,
			"Volumes %v are off this node, %v after the signal", pvs, hac.clock.Since(t.received).Round(time.Millisecond))
	}
	hac.pruneTracks(node, keep)
}
