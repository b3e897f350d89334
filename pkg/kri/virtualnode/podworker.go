package virtualnode

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// podPhase is how far a worker has come. It only advances.
type podPhase string

const (
	phaseSync        podPhase = "sync"        // the pod is to run
	phaseTerminating podPhase = "terminating" // its containers are to stop
	phaseTerminated  podPhase = "terminated"  // they have; its volumes are to go
	phaseFinished    podPhase = "finished"    // nothing is left but the API object
	phaseGone        podPhase = "gone"        // not even that
)

// worker looks after one pod UID.
type worker struct {
	loop *podLoop
	uid  types.UID
	wake chan struct{} // cap 1

	mu    sync.Mutex
	pod   *v1.Pod // the latest seen
	gone  bool    // the object is gone from the API
	phase podPhase
	// cancel ends the step under way, nil between steps.
	cancel context.CancelFunc

	written *v1.PodStatus // by this worker; only used in run
}

// workerState is a copy of what a worker knows.
type workerState struct {
	pod   *v1.Pod
	gone  bool
	phase podPhase
}

func newWorker(loop *podLoop, pod *v1.Pod) *worker {
	return &worker{loop: loop, uid: pod.UID, pod: pod, phase: phaseSync, wake: make(chan struct{}, 1)}
}

func (w *worker) state() workerState {
	w.mu.Lock()
	defer w.mu.Unlock()
	return workerState{pod: w.pod, gone: w.gone, phase: w.phase}
}

func (w *worker) named(pod *v1.Pod) bool {
	st := w.state()
	return st.pod.Name == pod.Name && st.pod.Namespace == pod.Namespace
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// update hands in a newer object. What it makes urgent interrupts the step
// under way: a kill, or a kill with less grace.
func (w *worker) update(pod *v1.Pod) {
	w.mu.Lock()
	before := workerState{pod: w.pod, gone: w.gone, phase: w.phase}
	w.pod = pod
	w.interrupt(before)
	w.mu.Unlock()
	w.signal()
}

func (w *worker) podGone() {
	w.mu.Lock()
	before := workerState{pod: w.pod, gone: w.gone, phase: w.phase}
	w.gone = true
	w.interrupt(before)
	w.mu.Unlock()
	w.signal()
}

// interrupt is called with w.mu held.
func (w *worker) interrupt(before workerState) {
	now := workerState{pod: w.pod, gone: w.gone, phase: w.phase}
	urgent := w.phase == phaseSync && now.unwanted() ||
		w.phase == phaseTerminating && ptr.Deref(now.grace(), 1<<31) < ptr.Deref(before.grace(), 1<<31)
	if urgent && w.cancel != nil {
		w.cancel()
	}
}

// unwanted reports whether the pod must not run any more.
func (s workerState) unwanted() bool {
	return s.gone || s.pod.DeletionTimestamp != nil ||
		s.pod.Status.Phase == v1.PodFailed || s.pod.Status.Phase == v1.PodSucceeded
}

// grace is how long containers have to stop, in seconds; nil for the pod's own.
// As with the kubelet it is never less than one.
func (s workerState) grace() *int64 {
	switch {
	case s.gone:
		return ptr.To(leftoverGrace)
	case s.pod.DeletionTimestamp != nil && s.pod.DeletionGracePeriodSeconds != nil:
		return ptr.To(max(1, *s.pod.DeletionGracePeriodSeconds))
	}
	return nil
}

// run takes steps until the pod is gone and stopped, or ctx ends.
func (w *worker) run(ctx context.Context) {
	failures, told := 0, ""
	for ctx.Err() == nil {
		st, stepCtx, cancel := w.begin(ctx)
		next, err := w.step(stepCtx, st)
		interrupted := stepCtx.Err() != nil
		cancel()
		if next != st.phase {
			failures, told = 0, ""
			w.advance(next)
			if next == phaseGone {
				w.loop.done(w)
				return
			}
			continue
		}
		if interrupted {
			continue
		}
		if err == nil {
			failures, told = 0, ""
		} else if failures++; told != err.Error() { // The same failure is told once.
			told = err.Error()
			klog.FromContext(stepCtx).Info("Step failed, will retry", "phase", st.phase, "err", err)
		}
		w.sleep(ctx, err, failures)
	}
}

// begin takes the state and makes the step by it interruptible, in one go: an
// update either is in the state or interrupts the step.
func (w *worker) begin(ctx context.Context) (workerState, context.Context, context.CancelFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	logger := klog.FromContext(ctx).WithValues("pod", klog.KObj(w.pod), "uid", w.uid)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	w.cancel = cancel
	return workerState{pod: w.pod, gone: w.gone, phase: w.phase}, ctx, cancel
}

func (w *worker) advance(next podPhase) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phase = next
}

// sleep waits for the next reason to take a step: an event, or after a failure
// the time to retry.
func (w *worker) sleep(ctx context.Context, err error, failures int) {
	if err == nil {
		select {
		case <-ctx.Done():
		case <-w.wake:
		}
		return
	}
	delay := retryDelay(failures)
	var retry *retryError
	if errors.As(err, &retry) {
		delay = retry.after
	}
	timer := w.loop.cfg.Clock.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.wake:
	case <-timer.C():
	}
}

// step does what the phase demands and returns the phase to go on with.
func (w *worker) step(ctx context.Context, st workerState) (podPhase, error) {
	switch st.phase {
	case phaseSync:
		if st.unwanted() {
			return phaseTerminating, nil
		}
		return w.sync(ctx, st)
	case phaseTerminating:
		return w.terminate(ctx, st)
	case phaseTerminated:
		if err := w.loop.provider.DeletePod(ctx, st.pod); err != nil {
			return st.phase, err
		}
		return phaseFinished, nil
	default:
		return w.finish(ctx, st)
	}
}

func (w *worker) sync(ctx context.Context, st workerState) (podPhase, error) {
	seen, err := w.loop.provider.GetPodStatus(ctx, st.pod)
	if err != nil {
		return st.phase, fmt.Errorf("getting the pod's status: %w", err)
	}
	if planPod(st.pod, seen).Done {
		return phaseTerminating, nil
	}
	if err := w.write(ctx, st.pod, seen, false); err != nil {
		return st.phase, err
	}
	syncErr := w.loop.provider.SyncPod(ctx, st.pod, seen, w.loop.reasons)
	if ctx.Err() != nil {
		return st.phase, ctx.Err()
	}
	if seen, err = w.loop.provider.GetPodStatus(ctx, st.pod); err != nil {
		return st.phase, errors.Join(syncErr, err)
	}
	return st.phase, errors.Join(syncErr, w.write(ctx, st.pod, seen, false))
}

// terminate advances only on the sight of no running container.
func (w *worker) terminate(ctx context.Context, st workerState) (podPhase, error) {
	seen, err := w.loop.provider.GetPodStatus(ctx, st.pod)
	if err != nil {
		return st.phase, fmt.Errorf("getting the pod's status: %w", err)
	}
	if err := w.loop.provider.KillPod(ctx, st.pod, seen.Running(), st.grace()); err != nil {
		return st.phase, err
	}
	if seen, err = w.loop.provider.GetPodStatus(ctx, st.pod); err != nil {
		return st.phase, fmt.Errorf("getting the pod's status: %w", err)
	}
	if left := seen.Running(); len(left.Containers) > 0 {
		return st.phase, fmt.Errorf("%d containers run on after the pod was killed", len(left.Containers))
	}
	return phaseTerminated, nil
}

// finish tells the API that the pod has stopped and lets go of its object.
func (w *worker) finish(ctx context.Context, st workerState) (podPhase, error) {
	if st.gone {
		return phaseGone, nil
	}
	seen, err := w.loop.provider.GetPodStatus(ctx, st.pod)
	if err != nil {
		return st.phase, fmt.Errorf("getting the pod's status: %w", err)
	}
	if err := w.write(ctx, st.pod, seen, true); err != nil {
		return st.phase, err
	}
	if st.pod.DeletionTimestamp == nil {
		return st.phase, nil
	}
	return st.phase, w.deleteObject(ctx, st.pod)
}
