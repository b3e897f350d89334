package hacontroller

import (
	"context"
	"errors"
	"math/bits"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"
)

const (
	fenceAgainFirst = time.Second
	fenceAgainMax   = time.Minute
)

// fence starts the fences that are due, each on its own: the storage may take
// long, and no other node waits for it, nor do the next callsPerNode-1 volumes
// of this one.
// Where there is a kubelet it is asked too, since its unmount is what many a
// storage waits for.
func (hac *haController) fence(ctx context.Context, l *live, w *walk, _ decision) (result, error) {
	if !hac.leads() {
		return result{}, errNotLeader
	}
	now := hac.clock.Now()
	t := w.track
	t.mu.Lock()
	for _, va := range w.vas {
		f := t.fences[va.UID]
		if f == nil {
			f = &fencing{}
			t.fences[va.UID] = f
		}
		if f.acked || f.running || now.Before(f.next) {
			continue
		}
		f.running = true
		hac.calls.Go(func() { hac.fenceOne(ctx, w, va, f) })
	}
	t.mu.Unlock()

	v := hac.view(w, l)
	if v.nodeReady {
		for _, p := range v.pods {
			if p.due(now) {
				hac.ask(ctx, w)
				break
			}
		}
	}
	return result{wait: fenceWait(v)}, nil
}

// fenceOne calls the Fencer for one attachment and wakes the node with the
// answer.
func (hac *haController) fenceOne(ctx context.Context, w *walk, va *storagev1.VolumeAttachment, f *fencing) {
	err := hac.callFencer(ctx, va)
	now := hac.clock.Now()
	t := w.track
	t.mu.Lock()
	f.running, f.acked = false, err == nil
	f.tries++
	pause := doubling(fenceAgainFirst, fenceAgainMax, f.tries-1)
	f.next = now.Add(pause)
	all := true
	for _, other := range w.vas {
		o := t.fences[other.UID]
		all = all && o != nil && o.acked
	}
	t.mu.Unlock()

	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, errNotLeader):
		hac.queue.AddAfter(w.node, hac.interval)
		return
	case err != nil:
		hac.fenceFailed(ctx, w, va, err, f.tries, pause)
		hac.queue.AddAfter(w.node, pause)
		return
	}
	if all {
		hac.reached(ctx, t, w.pvs(), MilestoneFenced)
	}
	hac.queue.Add(w.node)
}

// slotsOf bounds the fences that are in flight for a node.
func (hac *haController) slotsOf(node string) chan struct{} {
	hac.mu.Lock()
	defer hac.mu.Unlock()
	if hac.slots[node] == nil {
		hac.slots[node] = make(chan struct{}, callsPerNode)
	}
	return hac.slots[node]
}

// callFencer makes one bounded call, when there is room for it.
func (hac *haController) callFencer(ctx context.Context, va *storagev1.VolumeAttachment) error {
	slots := hac.slotsOf(va.Spec.NodeName)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if !hac.leads() {
		return errNotLeader
	}
	ctx, cancel := context.WithTimeout(ctx, hac.fenceTimeout)
	defer cancel()
	return caught(hac.metrics, func() error { return hac.fencer.Fence(ctx, va.DeepCopy()) })
}

// fenceFailed makes a fence that is not acknowledged seen: at first, and then
// each time the number of tries has doubled.
func (hac *haController) fenceFailed(ctx context.Context, w *walk, va *storagev1.VolumeAttachment, err error, tries int, pause time.Duration) {
	klog.FromContext(ctx).Error(err, "Failed to fence a volume, will retry", "volumeAttachment", va.Name, "tries", tries, "after", pause)
	if bits.OnesCount(uint(tries)) != 1 {
		return
	}
	const format = "Volume %s is not cut off from node %s yet, nothing is deleted before; tries: %d; the storage says: %v"
	hac.event(va, v1.EventTypeWarning, FenceFailedEventReason, format, pvOf(va), w.node, tries, err)
	for _, pod := range w.pods {
		hac.event(pod, v1.EventTypeWarning, FenceFailedEventReason, format, pvOf(va), w.node, tries, err)
	}
}
