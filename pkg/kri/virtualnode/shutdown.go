package virtualnode

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// shutdown stops and unmounts every pod. Objects stay: pods that are to go on
// running are started again by the next agent. No worker runs any more.
func (l *podLoop) shutdown(ctx context.Context) error {
	var group errgroup.Group
	var known []*v1.Pod
	for _, st := range l.snapshot() {
		known = append(known, st.pod)
		group.Go(func() error { return l.shutdownPod(ctx, st) })
	}
	err := group.Wait()
	// What had no worker, as after a start that never saw the API.
	found, getErr := l.provider.GetPods(ctx, true)
	if getErr == nil {
		getErr = l.provider.CleanupPods(ctx, known, found, nil)
	}
	return errors.Join(err, getErr)
}

func (l *podLoop) shutdownPod(ctx context.Context, st workerState) error {
	seen, err := l.provider.GetPodStatus(ctx, st.pod)
	if err != nil {
		return fmt.Errorf("getting the status of pod %s: %w", st.pod.Name, err)
	}
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	if own := st.pod.Spec.TerminationGracePeriodSeconds; own != nil {
		grace = *own
	}
	if now := st.grace(); now != nil {
		grace = *now
	}
	grace = max(1, min(grace, int64(l.cfg.ShutdownGrace.Seconds())))
	if err := l.provider.KillPod(ctx, st.pod, seen.Running(), ptr.To(grace)); err != nil {
		return fmt.Errorf("stopping pod %s: %w", st.pod.Name, err)
	}
	if err := l.provider.DeletePod(ctx, st.pod); err != nil {
		return fmt.Errorf("unmounting pod %s: %w", st.pod.Name, err)
	}
	return nil
}
