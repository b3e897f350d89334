package faults

import (
	"context"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	className = "provisioned"
	// provisionedPrefix begins the names of volumes that are provisioned.
	provisionedPrefix = "pvc-"
	journalPrefix     = "ha-sidecar-journal-"
)

// provisionRequests are the journal's, the PersistentVolume's and the driver's.
var provisionRequests = []string{
	"post configmaps", "put configmaps", "post persistentvolumes", "patch persistentvolumes", "delete persistentvolumes",
	"CreateVolume", "DeleteVolume",
}

// provisionAndDelete makes a claim, waits until it is bound, deletes it and waits
// until nothing is left. The claim may also be deleted by another meanwhile.
func provisionAndDelete(ctx context.Context, t *testing.T, w *world, name string) {
	claim, err := w.NewClaim(ctx, name, className, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, name+" is bound", func() bool {
		now, err := w.Client.CoreV1().PersistentVolumeClaims(rig.Namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && now.Status.Phase == v1.ClaimBound
	})
	if err := deleteClaim(ctx, w, name); err != nil {
		t.Fatal(err)
	}
	volume := provisionedPrefix + string(claim.UID)
	w.await(ctx, t, "volume, PersistentVolume and journal of "+name+" are gone", func() bool {
		_, err := w.Client.CoreV1().PersistentVolumes().Get(ctx, volume, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return false
		}
		volumes, err := w.DriverVolumes(ctx)
		if _, there := volumes[volume]; err != nil || there {
			return false
		}
		return w.journalIsEmpty(ctx)
	})
}

// journalIsEmpty reports whether nothing is written down as begun.
func (w *world) journalIsEmpty(ctx context.Context) bool {
	pages, err := w.Client.CoreV1().ConfigMaps(rig.SidecarNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false
	}
	for i := range pages.Items {
		if strings.HasPrefix(pages.Items[i].Name, journalPrefix) && len(pages.Items[i].Data) > 0 {
			return false
		}
	}
	return true
}

// deleteClaim deletes the claim of a play; one that is gone is no error.
func deleteClaim(ctx context.Context, w *world, name string) error {
	err := w.Client.CoreV1().PersistentVolumeClaims(rig.Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
