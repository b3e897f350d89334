package virtualnode

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

// write patches the pod's status if it is not what was written last.
func (w *worker) write(ctx context.Context, pod *v1.Pod, seen *container.PodStatus, stopped bool) error {
	status := podStatus(statusInput{
		pod: withWritten(pod, w.written), seen: seen, reason: w.loop.reasons, stopped: stopped, now: w.loop.cfg.Clock.Now(),
	})
	w.loop.provider.RefreshPodStatus(pod, &status)
	if w.written != nil && equality.Semantic.DeepEqual(*w.written, status) {
		return nil
	}
	if err := w.patchStatus(ctx, pod, &status); err != nil {
		return err
	}
	w.written = &status
	return nil
}

// withWritten returns the pod with the status that was written last: the object
// that was watched may be older. What others may have written since is taken
// from the object.
func withWritten(pod *v1.Pod, written *v1.PodStatus) *v1.Pod {
	if written == nil {
		return pod
	}
	out := *pod
	out.Status = *written
	if pod.Status.Phase == v1.PodFailed || pod.Status.Phase == v1.PodSucceeded {
		out.Status.Phase, out.Status.Reason, out.Status.Message = pod.Status.Phase, pod.Status.Reason, pod.Status.Message
	}
	return &out
}

// patchStatus carries the UID, so that a pod of the same name is not meant.
// Conditions are merged by type: those of others stay.
func (w *worker) patchStatus(ctx context.Context, pod *v1.Pod, status *v1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encoding the pod's status: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, w.loop.cfg.APITimeout)
	defer cancel()
	_, err = w.loop.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // Gone, or another pod of the name: the watch will tell.
	}
	if err != nil {
		return fmt.Errorf("writing the pod's status: %w", err)
	}
	return nil
}

// deleteObject ends the graceful deletion of a pod that has stopped.
func (w *worker) deleteObject(ctx context.Context, pod *v1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, w.loop.cfg.APITimeout)
	defer cancel()
	opts := metav1.NewDeleteOptions(0)
	opts.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	err := w.loop.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *opts)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("deleting the stopped pod: %w", err)
	}
	return nil
}
