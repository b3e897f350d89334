package main

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// batch are VolumeAttachments and their PersistentVolumes, the i-th on volume i of
// the driver and node i.
type batch struct {
	w *stage
	// names are those of the VolumeAttachments, volumes of the PersistentVolumes.
	names, volumes []string
	// ask has the i-th attached, leave has it detached.
	ask, leave func(ctx context.Context, i int) error
	// first is the first volume of the driver.
	first int
	// finalizers are those of the PersistentVolumes.
	finalizers []string
}

// newBatch makes PersistentVolumes that nobody has attached before.
func (w *stage) newBatch(ctx context.Context, first, volumes int) (*batch, error) {
	return w.batchOf(ctx, first, volumes)
}

// usedBatch makes PersistentVolumes as both sides leave them once they were
// attached: with their finalizer.
func (w *stage) usedBatch(ctx context.Context, first, volumes int) (*batch, error) {
	return w.batchOf(ctx, first, volumes, "external-attacher/"+strings.ReplaceAll(rig.Driver, ".", "-"))
}

func (w *stage) batchOf(ctx context.Context, first, volumes int, finalizers ...string) (*batch, error) {
	b := w.plan(first, volumes)
	b.names, b.ask, b.leave, b.finalizers = b.volumes, b.attach, b.detach, finalizers
	return b, world.Each(volumes, func(i int) error { return b.create(ctx, i, nil) })
}

// plan names the PersistentVolumes of a batch.
func (w *stage) plan(first, volumes int) *batch {
	w.turns++
	b := &batch{w: w, first: first}
	for i := range volumes {
		b.volumes = append(b.volumes, fmt.Sprintf("bench-%d-%04d", w.turns, i))
	}
	return b
}

// create makes the i-th PersistentVolume, for a claim if there is one.
func (b *batch) create(ctx context.Context, i int, claim *v1.ObjectReference) error {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: b.volumes[i], Finalizers: b.finalizers},
		Spec: v1.PersistentVolumeSpec{
			AccessModes:                   []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Capacity:                      v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			ClaimRef:                      claim,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: rig.Driver, VolumeHandle: state.VolumeID(volumeName(b.first + i)),
			}},
		},
	}
	_, err := b.w.admin.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	return err
}

// attach creates the i-th VolumeAttachment.
func (b *batch) attach(ctx context.Context, i int) error {
	va := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: b.names[i]},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: rig.Driver, NodeName: nodeName(b.first + i),
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &b.volumes[i]},
		},
	}
	_, err := b.w.admin.StorageV1().VolumeAttachments().Create(ctx, va, metav1.CreateOptions{})
	return err
}

// detach deletes the i-th VolumeAttachment.
func (b *batch) detach(ctx context.Context, i int) error {
	return b.w.admin.StorageV1().VolumeAttachments().Delete(ctx, b.names[i], metav1.DeleteOptions{})
}

// remove takes the PersistentVolumes away, finalizers and all, once nobody runs
// who would do it. What claims there are stay: nothing reads them any more.
func (b *batch) remove(ctx context.Context) error {
	volumes := b.w.admin.CoreV1().PersistentVolumes()
	return world.Each(len(b.volumes), func(i int) error {
		if _, err := volumes.Patch(ctx, b.volumes[i], types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
			return err
		}
		err := volumes.Delete(ctx, b.volumes[i], metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}
