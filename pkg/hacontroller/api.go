package hacontroller

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// write is the one way to the API server for anything that changes something:
// the lease is looked at immediately before.
func (hac *haController) write(ctx context.Context, call func(ctx context.Context) error) error {
	if !hac.leads() {
		return errNotLeader
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	return call(ctx)
}

// evict asks for the pod of this UID to be stopped, within grace.
func (hac *haController) evict(ctx context.Context, pod *v1.Pod, grace time.Duration) error {
	seconds := int64(grace / time.Second)
	return hac.write(ctx, func(ctx context.Context) error {
		return hac.client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{
				GracePeriodSeconds: &seconds,
				Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
			},
		})
	})
}

// deletePod removes the pod of this UID at once. What still runs on the node is
// cut off from the volume by then.
func (hac *haController) deletePod(ctx context.Context, pod *v1.Pod) error {
	return hac.write(ctx, func(ctx context.Context) error {
		return hac.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64),
			Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
		})
	})
}

// failPod marks the pod Failed, so that Jobs and other owners see a disruption
// and not a pod that vanished. The UID in the patch is a precondition.
func (hac *haController) failPod(ctx context.Context, pod *v1.Pod, message string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{
			"phase": v1.PodFailed,
			"conditions": []v1.PodCondition{{
				Type:               v1.DisruptionTarget,
				Status:             v1.ConditionTrue,
				Reason:             DisruptionReason,
				Message:            message,
				LastTransitionTime: metav1.NewTime(hac.clock.Now()),
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("encoding the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return hac.write(ctx, func(ctx context.Context) error {
		_, err := hac.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
			patch, metav1.PatchOptions{}, "status")
		return err
	})
}

// deleteVA removes the VolumeAttachment of this UID. Its finalizer keeps it
// until the driver has let go.
func (hac *haController) deleteVA(ctx context.Context, va *storagev1.VolumeAttachment) error {
	return hac.write(ctx, func(ctx context.Context) error {
		return hac.client.StorageV1().VolumeAttachments().Delete(ctx, va.Name, metav1.DeleteOptions{
			Preconditions: metav1.NewUIDPreconditions(string(va.UID)),
		})
	})
}

// recordVA writes the fence record on exactly the VolumeAttachment that was
// read: another UID or a newer version is a conflict.
func (hac *haController) recordVA(ctx context.Context, va *storagev1.VolumeAttachment, value string) (*storagev1.VolumeAttachment, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             va.UID,
		"resourceVersion": va.ResourceVersion,
		"annotations":     map[string]string{volume.AnnotationFenced: value},
	}})
	if err != nil {
		return nil, fmt.Errorf("encoding the record of VolumeAttachment %s: %w", va.Name, err)
	}
	var updated *storagev1.VolumeAttachment
	err = hac.write(ctx, func(ctx context.Context) error {
		var err error
		updated, err = hac.client.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	return updated, err
}
