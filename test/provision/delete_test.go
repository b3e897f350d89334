package provision

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// Others take their finalizers off a PersistentVolume while we delete it, and it
// stayed Terminating. Whoever comes first, it goes.
func TestProvisioner1217OthersTakeTheirFinalizersOff(t *testing.T) {
	s := inWorld(t)
	s.class()
	others := []string{"external-attacher/other-csi-example-com", "example.com/a", "example.com/b"}
	var stripping errgroup.Group
	var claims []*v1.PersistentVolumeClaim
	for i := range 8 {
		claim := s.claim(fmt.Sprint("-", i))
		claims = append(claims, claim)
		s.bound(claim)
		for _, f := range others {
			s.patchPV(pvName(claim), types.JSONPatchType, fmt.Sprintf(`[{"op":"add","path":"/metadata/finalizers/0","value":%q}]`, f))
		}
	}
	for _, claim := range claims {
		s.deleteClaim(claim)
		stripping.Go(func() error { return s.strip(pvName(claim), others) })
	}
	s.must(stripping.Wait())
	for _, claim := range claims {
		s.gone(claim)
		s.once("DeleteVolume", claim)
	}
}

// strip takes finalizers off one by one from when the PersistentVolume is
// Released, by updates that conflict with those of others.
func (s *scene) strip(name string, finalizers []string) error {
	return s.Await(s.ctx, "the finalizers of others are off", func() bool {
		pv, err := s.Client.CoreV1().PersistentVolumes().Get(s.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true
		}
		if err != nil || pv.Status.Phase != v1.VolumeReleased {
			return false
		}
		pv.Finalizers = slices.DeleteFunc(pv.Finalizers, func(f string) bool { return f == finalizers[0] })
		if _, err := s.Client.CoreV1().PersistentVolumes().Update(s.ctx, pv, metav1.UpdateOptions{}); err == nil {
			finalizers = finalizers[1:]
		}
		return len(finalizers) == 0
	})
}

// A person deletes the PersistentVolume first and then the claim: the volume was
// left at the driver. It is deleted, and then the PersistentVolume goes.
func TestProvisioner546PersistentVolumeDeletedFirst(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("")
	s.bound(claim)
	s.deletePV(pvName(claim))
	s.deleteClaim(claim)
	s.gone(claim)
	s.once("DeleteVolume", claim)
}

// A PersistentVolume that is Released and Terminating was never looked at again.
// It is finalised once its volume is deleted.
func TestProvisionerLib42ReleasedAndTerminatingIsFinalised(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("")
	s.bound(claim)
	failing := s.fault(simctl.Fault{Method: "DeleteVolume", Volume: volumeID(claim), Code: codes.Internal, Message: "the array says no"})
	s.deleteClaim(claim)
	s.told(pvName(claim), provisioner.ReasonVolumeFailedDelete, "the array says no")
	s.deletePV(pvName(claim))
	if pv := s.pv(pvName(claim)); pv == nil || pv.DeletionTimestamp == nil || pv.Status.Phase != v1.VolumeReleased {
		t.Fatalf("the PersistentVolume is %+v, want it Released and Terminating", pv)
	}
	failing.hits(2)
	failing.clear()
	s.gone(claim)
}

// A PersistentVolume is retained, deleted or not by what its policy says when it
// is looked at, whatever it said before.
func TestProvisionerLib87PolicyChangesAfterTheRelease(t *testing.T) {
	s := inWorld(t)
	s.class(func(c *storagev1.StorageClass) {
		retain := v1.PersistentVolumeReclaimRetain
		c.ReclaimPolicy = &retain
	})
	kept, changed := s.claim("-kept"), s.claim("-changed")
	for _, claim := range []*v1.PersistentVolumeClaim{kept, changed} {
		if pv := s.bound(claim); slices.Contains(pv.Finalizers, provisioner.Finalizer) {
			t.Errorf("a PersistentVolume that is retained has finalizers %v", pv.Finalizers)
		}
		s.deleteClaim(claim)
		s.released(claim)
	}
	s.patchPV(pvName(changed), types.MergePatchType, `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	s.gone(changed)
	s.deletePV(pvName(kept))
	s.await("the PersistentVolume that is retained is gone", func() bool { return s.pv(pvName(kept)) == nil })
	s.never("DeleteVolume", kept)
	s.deleteVolume(volumeID(kept))
}

// A Released PersistentVolume without a claimRef, as when a person has taken that
// out to use the volume again, ended the process.
func TestProvisionerPull796ReleasedWithoutClaimRef(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("")
	s.bound(claim)
	failing := s.fault(simctl.Fault{Method: "DeleteVolume", Volume: volumeID(claim), Code: codes.Internal})
	s.deleteClaim(claim)
	failing.hits(1)
	s.patchPV(pvName(claim), types.JSONPatchType, `[{"op":"remove","path":"/spec/claimRef"}]`)
	s.await("it is Available", func() bool { return s.pv(pvName(claim)).Status.Phase == v1.VolumeAvailable })
	failing.clear()
	again := s.claim("-again", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = pvName(claim) })
	if pv := s.bound(again); pv.Name != pvName(claim) || !s.exists(claim) {
		t.Errorf("bound to %s, and the volume is there: %v", pv.Name, s.exists(claim))
	}
	s.deleteClaim(again)
	s.gone(claim)
}

// A driver that fails 30 times was given up after 15: provisioning and deletion
// go on until they succeed. TestWithFlags has the creation; this is the deletion
// of a volume that was gone in all but name: NotFound is the driver's to answer
// by success, and is no success here.
func TestProvisioner674FailedDeletionGoesOn(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("")
	s.bound(claim)
	failing := s.fault(simctl.Fault{Method: "DeleteVolume", Volume: volumeID(claim), Code: codes.NotFound, Times: 4})
	s.deleteClaim(claim)
	failing.hits(4)
	s.gone(claim)
}

// The volume is not deleted while a VolumeAttachment names it, which is told
// once and without a warning, and it is deleted at once when that is gone.
func TestAttachedVolumeIsDeletedOnceDetached(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("")
	pv := s.bound(claim)
	_, err := s.Client.StorageV1().VolumeAttachments().Create(s.ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: rig.Driver, NodeName: nodeIn(zoneOf(pv)), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.await("it is attached", func() bool { va := s.AttachmentNamed(s.name); return va != nil && va.Status.Attached })
	s.deleteClaim(claim)
	s.told(pv.Name, provisioner.ReasonVolumeDelete, "once it is detached")
	s.never("DeleteVolume", claim)
	s.must(s.Client.StorageV1().VolumeAttachments().Delete(s.ctx, s.name, metav1.DeleteOptions{}))
	s.await("the VolumeAttachment is gone", func() bool { return s.AttachmentNamed(s.name) == nil })
	detached := time.Now()
	s.gone(claim)
	if took := time.Since(detached); took > 5*time.Second {
		t.Errorf("the volume is deleted %v after it was detached", took)
	}
	s.once("DeleteVolume", claim)
	if e := s.Events(pv.Name, provisioner.ReasonVolumeFailedDelete); len(e) > 0 {
		t.Errorf("a warning: %s", e[0].Message)
	}
}

// nodeIn is a node of the zone that zoneOf tells.
func nodeIn(zone string) string {
	for node, at := range zones {
		if zone == inZone(at["example.com/zone"]) {
			return node
		}
	}
	return "none"
}

// PersistentVolumes that were made by hand for the driver, with the policy Delete,
// are protected while they are bound and deleted like all.
func TestStaticVolumeIsProtectedAndDeleted(t *testing.T) {
	s := inWorld(t)
	id, err := s.Driver.CreateVolume(s.ctx, s.name, 1<<30)
	s.must(err)
	none := ""
	_, err = s.Client.CoreV1().PersistentVolumes().Create(s.ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: asked("1Gi"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &v1.ObjectReference{Namespace: rig.Namespace, Name: s.name},
			PersistentVolumeSource:        v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: rig.Driver, VolumeHandle: id}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	claim := s.claim("", func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName, c.Spec.VolumeName = &none, s.name })
	s.bound(claim)
	s.await("it has the finalizer", func() bool { return slices.Contains(s.pv(s.name).Finalizers, provisioner.Finalizer) })
	s.deleteClaim(claim)
	s.await("volume and PersistentVolume are gone", func() bool {
		volumes, err := s.DriverVolumes(s.ctx)
		s.must(err)
		_, there := volumes[s.name]
		return !there && s.pv(s.name) == nil
	})
	if id != state.VolumeID(s.name) {
		t.Errorf("the volume was %s", id)
	}
}
