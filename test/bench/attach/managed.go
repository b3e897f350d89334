package main

import (
	"context"
	"crypto/sha256"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// managed has pods, for which kube-controller-manager makes and deletes the
// VolumeAttachments. Whoever attaches then waits for it: there is no bar.
var managed = setting{
	name: "MANAGED",
	title: "VolumeAttachments made by kube-controller-manager for pods, with its shipped 20 requests/s; " +
		"both sides as in TUNED",
	flags:   tuned.flags,
	manager: shipped.manager,
	pods:    true,
}

// newManaged makes claims with their volumes. The binder is off, so that they
// are made as it leaves them.
func (w *stage) newManaged(ctx context.Context, first, volumes int) (*batch, error) {
	b := w.plan(first, volumes)
	b.ask, b.leave = b.createPod, b.deletePod
	for i := range volumes {
		b.names = append(b.names, attachmentName(state.VolumeID(volumeName(first+i)), nodeName(first+i)))
	}
	return b, world.Each(volumes, func(i int) error {
		claims := w.admin.CoreV1().PersistentVolumeClaims(rig.Namespace)
		claim, err := claims.Create(ctx, &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: b.volumes[i]},
			Spec: v1.PersistentVolumeClaimSpec{
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
				VolumeName:  b.volumes[i],
				Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating claim %s: %w", b.volumes[i], err)
		}
		if err := b.create(ctx, i, &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID}); err != nil {
			return err
		}
		claim.Status.Phase = v1.ClaimBound
		_, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		return err
	})
}

// attachmentName is what kube-controller-manager calls a VolumeAttachment.
func attachmentName(handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+rig.Driver+node)))
}

// createPod makes a pod that is on its node already.
func (b *batch) createPod(ctx context.Context, i int) error {
	no := false
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: b.volumes[i]},
		Spec: v1.PodSpec{
			NodeName: nodeName(b.first + i), AutomountServiceAccountToken: &no,
			Containers: []v1.Container{{Name: "none", Image: "none"}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: b.volumes[i]},
			}}},
		},
	}
	_, err := b.w.admin.CoreV1().Pods(rig.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// deletePod is done at once, since no kubelet has to agree.
func (b *batch) deletePod(ctx context.Context, i int) error {
	now := int64(0)
	return b.w.admin.CoreV1().Pods(rig.Namespace).Delete(ctx, b.volumes[i], metav1.DeleteOptions{GracePeriodSeconds: &now})
}
