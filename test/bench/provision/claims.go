package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
)

// What claims and PersistentVolumes become.
const (
	made  = "made"
	bound = "bound"
)

// batch are claims of the StorageClass.
type batch struct {
	w     *stage
	names []string
	// uids are known once the claims are created.
	uids []types.UID
}

// newBatch names claims; none exists yet.
func (w *stage) newBatch(claims int) *batch {
	w.turns++
	b := &batch{w: w, uids: make([]types.UID, claims)}
	for i := range claims {
		b.names = append(b.names, fmt.Sprintf("bench-%d-%05d", w.turns, i))
	}
	return b
}

// claim is the i-th, as a person writes it.
func (b *batch) claim(i int) *v1.PersistentVolumeClaim {
	class := className
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: b.names[i], Namespace: namespace},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes:      []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			StorageClassName: &class,
			Resources:        v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}},
		},
	}
}

func (b *batch) create(ctx context.Context, i int) error {
	claim, err := b.w.admin.CoreV1().PersistentVolumeClaims(namespace).Create(ctx, b.claim(i), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	b.uids[i] = claim.UID
	return nil
}

func (b *batch) delete(ctx context.Context, i int) error {
	return b.w.admin.CoreV1().PersistentVolumeClaims(namespace).Delete(ctx, b.names[i], metav1.DeleteOptions{})
}

// volumes are the names that both programs give the volumes at the driver.
func (b *batch) volumes() []string {
	all := make([]string, 0, len(b.uids))
	for _, uid := range b.uids {
		all = append(all, volumeName(uid))
	}
	return all
}

// volumeName is that of the PersistentVolume for a claim, too.
func volumeName(uid types.UID) string { return "pvc-" + string(uid) }

// trackClaims times when claims are bound.
func trackClaims(ctx context.Context, client kubernetes.Interface) (*track.Tracker, error) {
	claims := client.CoreV1().PersistentVolumeClaims(namespace)
	return track.Start(ctx, track.Kind{
		What:  "claims",
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return claims.List(ctx, o) },
		Watch: claims.Watch,
		Name:  func(o runtime.Object) string { return o.(*v1.PersistentVolumeClaim).Name },
		Marks: func(o runtime.Object) []string {
			if o.(*v1.PersistentVolumeClaim).Status.Phase == v1.ClaimBound {
				return []string{bound}
			}
			return nil
		},
	})
}

// trackVolumes times the PersistentVolumes, by the names of their claims.
func trackVolumes(ctx context.Context, client kubernetes.Interface) (*track.Tracker, error) {
	volumes := client.CoreV1().PersistentVolumes()
	return track.Start(ctx, track.Kind{
		What:  "PersistentVolumes",
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return volumes.List(ctx, o) },
		Watch: volumes.Watch,
		Name: func(o runtime.Object) string {
			if claim := o.(*v1.PersistentVolume).Spec.ClaimRef; claim != nil {
				return claim.Name
			}
			return ""
		},
		Marks: func(runtime.Object) []string { return []string{made} },
	})
}
