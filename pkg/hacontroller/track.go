package hacontroller

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// A hold that did not stay is put on again after this, doubling.
const (
	holdAgainFirst = time.Second
	holdAgainMax   = time.Minute
)

// The milestones of a walk, in their order; label of the histogram.
const (
	MilestoneHeld       = "held"
	MilestoneAsked      = "asked"
	MilestoneRecorded   = "recorded"
	MilestoneFenced     = "fenced"
	MilestonePodDeleted = "pod-deleted"
	MilestonePodsGone   = "pods-gone"
	MilestoneVADeleted  = "va-deleted"
	MilestoneDone       = "done"
)

// StepEvent is one milestone of one walk, told once.
type StepEvent struct {
	// Step is a Milestone constant.
	Step string
	Node string
	// PVs are the volumes of the closure.
	PVs []string
	// At is when the step was acknowledged, by the controller's clock, and
	// Since the time from the signal until then.
	At    time.Time
	Since time.Duration
}

// track is what one process remembers of a walk between passes: when something
// was tried. Losing it costs time and nothing else.
type track struct {
	node     string
	received time.Time

	mu   sync.Mutex
	seen map[string]time.Duration
	// span is nil before the first milestone and after the end.
	span trace.Span
	// askedSince is when this round of asking began, zero before it.
	askedSince time.Time
	// notBefore is when the next round may begin, after rounds that ended.
	notBefore time.Time
	rounds    int
	// holds counts how often the node was held for this walk, heldAt is when last.
	holds  int
	heldAt time.Time
	// failures counts the passes in a row in which its step failed.
	failures int
	asks     map[types.UID]ask
	fences   map[types.UID]*fencing
	// finishing: only the end of these attachments is still waited for.
	finishing bool
	vas       []types.UID
	pvs       []string
	// watchUntil bounds the watch over pods that were only asked; zero: no bound.
	watchUntil time.Time
}

// finish remembers what to wait for, and to name, at the end of w; until is when
// to stop waiting, zero for never.
func (t *track) finish(w *walk, until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finishing = true
	t.watchUntil = until
	t.pvs = w.pvs()
	vas := make([]types.UID, 0, len(w.targets))
	for _, target := range w.targets {
		vas = append(vas, target.VolumeAttachmentUID)
	}
	t.vas = vas
}

// resume begins a new round of asking, unless the one that is under way is about
// a pod of w. The judge may withdraw a walk while the evicted pods are stopping,
// and speak of it again when they do not: their deadline goes on meanwhile.
func (t *track) resume(w *walk) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.askedSince.IsZero() || len(w.pods) == 0 {
		return
	}
	for _, pod := range w.pods {
		if _, ok := t.asks[pod.UID]; ok {
			return
		}
	}
	t.askedSince = time.Time{}
	clear(t.asks)
}

// holdsExpected is how often a node is held for one walk: before the first pod
// goes, and once more as fenced.
const holdsExpected = 2

// holdTried notes one more hold and returns how many there were.
func (t *track) holdTried(now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.holds++
	t.heldAt = now
	return t.holds
}

// holdPause is how long to wait before the node is held once more. A hold that
// does not stay is somebody's doing, and who removes it at once, told by the very
// event of it, must not meet one who puts it on at once.
func (t *track) holdPause(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.holds < holdsExpected {
		return 0
	}
	return t.heldAt.Add(doubling(holdAgainFirst, holdAgainMax, t.holds-holdsExpected)).Sub(now)
}

// forgetFences is for a walk without a record: what was acknowledged, or still is
// to be, was for a plan that somebody has taken away. The volumes may have been
// published again since.
func (t *track) forgetFences() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.fences)
}

// waitsFor says which attachments' end is waited for, and names their volumes.
func (t *track) waitsFor(now time.Time) (vas []types.UID, pvs []string, finishing bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.vas, t.pvs, t.finishing && (t.watchUntil.IsZero() || now.Before(t.watchUntil))
}

// ask is the last eviction tried for a pod.
type ask struct {
	running bool
	tries   int
	next    time.Time
	reason  Reason // why it was not accepted; "" when it was
}

// fencing is the state of one attachment's fence.
type fencing struct {
	running, acked bool
	tries          int
	next           time.Time
}

// track finds or begins the memory of the walk that is known by key.
func (hac *haController) track(key types.UID, node string, received time.Time) *track {
	hac.mu.Lock()
	defer hac.mu.Unlock()
	t := hac.tracks[key]
	if t == nil {
		t = &track{
			node: node, received: received,
			seen: map[string]time.Duration{}, asks: map[types.UID]ask{}, fences: map[types.UID]*fencing{},
		}
		hac.tracks[key] = t
	}
	return t
}

// pruneTracks forgets the walks of node that are not in keep.
func (hac *haController) pruneTracks(node string, keep map[types.UID]bool) {
	hac.mu.Lock()
	defer hac.mu.Unlock()
	for key, t := range hac.tracks {
		if t.node == node && !keep[key] {
			hac.traceEnd(t, "withdrawn")
			delete(hac.tracks, key)
		}
	}
}

// reached tells of a milestone, once per walk.
func (hac *haController) reached(ctx context.Context, t *track, pvs []string, step string) {
	now := hac.clock.Now()
	since := now.Sub(t.received)
	t.mu.Lock()
	_, known := t.seen[step]
	if !known {
		t.seen[step] = since
		hac.traceStep(ctx, t, pvs, step, now)
	}
	t.mu.Unlock()
	if known {
		return
	}
	hac.metrics.steps.WithLabelValues(step).Observe(since.Seconds())
	klog.FromContext(ctx).Info("Failover step", "step", step, "persistentVolumes", pvs, "sinceSignal", since)
	if hac.observer != nil {
		hac.observer(StepEvent{Step: step, Node: t.node, PVs: pvs, At: now, Since: since})
	}
}

// timeline is the walk so far, for its last log line.
func (t *track) timeline() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[string]string, len(t.seen))
	for step, d := range t.seen {
		out[step] = d.Round(time.Millisecond).String()
	}
	return out
}

// doubling is first*2^n, at most limit.
func doubling(first, limit time.Duration, n int) time.Duration {
	d := first
	for range n {
		if d >= limit {
			break
		}
		d *= 2
	}
	return min(d, limit)
}
