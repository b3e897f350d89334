package provision

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// CreateVolume makes the volume and times out, twice, and meanwhile the claim is
// deleted: volumes were left at the driver. The same call is made until its
// outcome is known, and what it made is deleted, whatever the reclaim policy:
// nobody has used it.
func TestProvisioner131TimedOutCreateIsReplayedAndDeleted(t *testing.T) {
	for _, policy := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain} {
		t.Run(string(policy), func(t *testing.T) {
			s := inWorld(t)
			s.policy = &policy
			claim := s.held("")
			slow := s.failCreate(claim, simctl.Fault{Hang: true, Effect: true, Times: 2})
			s.selectNode(claim, "node-1")
			s.told(claim.Name, provisioner.ReasonProvisioningFailed, "DeadlineExceeded")
			s.deleteClaim(claim)
			s.claimGone(claim)
			if !s.exists(claim) {
				t.Error("the volume is gone before anybody can know that it was made")
			}
			slow.hits(2)
			s.await("the volume is deleted", func() bool { return !s.exists(claim) })
			s.gone(claim)
			if n := s.sameRequests(claim); n != 3 {
				t.Errorf("%d CreateVolume, want two that time out and one that does not", n)
			}
			s.once("DeleteVolume", claim)
		})
	}
}

// Between two calls for a volume that may exist its class is deleted, and the
// selected node is taken off its claim: the volume was forgotten. It is made known
// by the same call, and is the claim's.
func TestWhatWasBegunNeedsNeitherClassNorNode(t *testing.T) {
	s := inWorld(t)
	claim := s.held("")
	f := s.failCreate(claim, simctl.Fault{Code: codes.Unavailable, Effect: true})
	s.selectNode(claim, "node-3")
	f.hits(1)
	s.must(s.Client.StorageV1().StorageClasses().Delete(s.ctx, *claim.Spec.StorageClassName, metav1.DeleteOptions{}))
	s.patchClaim(claim, map[string]any{"metadata": map[string]any{"annotations": map[string]any{provisioner.AnnotationSelectedNode: nil}}})
	f.hits(3)
	f.clear()
	pv := s.bound(claim)
	if zoneOf(pv) != inZone("c") || pv.Spec.StorageClassName != *claim.Spec.StorageClassName || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
		t.Errorf("PersistentVolume in %s: %+v", zoneOf(pv), pv.Spec)
	}
	s.sameRequests(claim)
	s.deleteClaim(claim)
	s.gone(claim)
}

// A claim is deleted and made again under its name, again and again, in whatever
// state it is: a claim that lagging informers still showed got a second volume,
// which was lost. Each has at most one, and none is left.
func TestProvisioner1469SameNameAgainAndAgain(t *testing.T) {
	s := inWorld(t)
	s.class()
	var claims []*v1.PersistentVolumeClaim
	for i := range 12 {
		claim := s.claim("")
		claims = append(claims, claim)
		switch i % 3 {
		case 0:
			s.bound(claim)
		case 1:
			s.await("its PersistentVolume is there", func() bool { return s.pv(pvName(claim)) != nil })
		}
		s.deleteClaim(claim)
		s.claimGone(claim)
	}
	for _, claim := range claims {
		s.gone(claim)
		if n := len(s.calls("CreateVolume", claim)); n > 1 {
			t.Errorf("%d CreateVolume for one claim", n)
		}
	}
}

// The same with an error in the place of a time-out, of every kind that leaves
// the outcome open, and a claim that stays: it gets the volume that was made.
func TestProvisioner311UncertainErrorIsReplayed(t *testing.T) {
	s := inWorld(t)
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Canceled, codes.Unavailable, codes.Aborted} {
		claim := s.held("-" + strings.ToLower(code.String()))
		defer s.deleteClaim(claim)
		f := s.failCreate(claim, simctl.Fault{Code: code, Effect: true, Times: 2})
		s.selectNode(claim, "node-1")
		f.hits(2)
		s.bound(claim)
		if n := s.sameRequests(claim); n != 3 {
			t.Errorf("%v: %d CreateVolume, want 3", code, n)
		}
	}
}

// A PersistentVolume of the claim's name is there already, and is another's:
// volumes were made for it without end. None is made, the claim is told, and all
// goes on once it is away.
func TestProvisioner124ExistingPersistentVolumeMakesNoVolumes(t *testing.T) {
	s := inWorld(t)
	claim := s.held("")
	_, err := s.Client.CoreV1().PersistentVolumes().Create(s.ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pvName(claim)},
		Spec: v1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, StorageClassName: "somebody-elses",
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/none"}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.await("it is known", func() bool { return s.pv(pvName(claim)).Status.Phase == v1.VolumeAvailable })
	s.selectNode(claim, "node-1")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "exists already and is not this claim's")
	s.never("CreateVolume", claim)
	if s.exists(claim) {
		t.Error("a volume was made")
	}
	s.deletePV(pvName(claim))
	s.bound(claim)
	s.once("CreateVolume", claim)
	s.deleteClaim(claim)
	s.gone(claim)
}

// A change of the claim that comes while an attempt is under way was lost, since
// the failure of that attempt began a new pause. It counts at once, as one does
// that comes in a pause.
func TestProvisionerLib103ChangeDuringAnAttemptCountsAtOnce(t *testing.T) {
	s := inWorld(t)
	claim := s.held("")
	// After these the pause is 2.4 s, and then 4 s. The code says that nothing was
	// made.
	failing := s.failCreate(claim, simctl.Fault{Code: codes.PermissionDenied, Times: 4})
	hanging := s.failCreate(claim, simctl.Fault{Code: codes.PermissionDenied, Hang: true, Times: 1})
	s.selectNode(claim, "node-1")
	failing.hits(4)
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "PermissionDenied")
	s.selectNode(claim, "node-3")
	hanging.hits(1)
	s.selectNode(claim, "node-2")
	s.must(s.Driver.Release(s.ctx, hanging.id))
	s.bound(claim)
	calls := s.calls("CreateVolume", claim)
	if len(calls) != 6 {
		t.Fatalf("%d CreateVolume, want 6", len(calls))
	}
	if pause := calls[4].Begun.Sub(calls[3].Begun); pause > 2*time.Second {
		t.Errorf("a change in a pause counts after %v", pause)
	}
	if pause := calls[5].Begun.Sub(calls[4].Begun); pause > 3*time.Second {
		t.Errorf("a change during an attempt counts after %v", pause)
	}
	if at := s.request(calls[5]).AccessibilityRequirements.Preferred[0].Segments["example.com/zone"]; at != "b" {
		t.Errorf("the volume is to be in zone %s, and the node that is selected now is in b", at)
	}
	s.deleteClaim(claim)
	s.gone(claim)
}

// A claim of an in-tree provisioner that nobody has migrated was provisioned all
// the same. It is not ours, and nothing is said of it.
func TestProvisioner340InTreeClaimIsIgnored(t *testing.T) {
	s := inWorld(t)
	inTree, err := s.NewClass(s.ctx, s.name+"-foreign", func(c *storagev1.StorageClass) { c.Provisioner = "kubernetes.io/aws-ebs" })
	s.must(err)
	foreign := s.claim("-foreign", func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &inTree.Name })
	s.await("kube-controller-manager has said whose it is", func() bool {
		now := s.Claim(foreign.Namespace, foreign.Name)
		return now != nil && now.Annotations[provisioner.AnnotationStorageProvisioner] != ""
	})
	s.class()
	ours := s.claim("-ours")
	s.bound(ours)
	s.never("CreateVolume", foreign)
	if e := s.Events(foreign.Name, provisioner.ReasonProvisioning, provisioner.ReasonProvisioningFailed); len(e) > 0 {
		t.Errorf("it was told: %s", e[0].Message)
	}
	s.deleteClaim(foreign)
	s.deleteClaim(ours)
	s.gone(ours)
}

// A volume has exactly the size that the driver says; a claim on a fraction of a
// byte asks for the whole one.
func TestProvisionerPull541SizeIsExact(t *testing.T) {
	s := inWorld(t)
	s.class()
	for size, want := range map[string]int64{"1000000001": 1000000001, "1073741824500m": 1073741825} {
		claim := s.claim("-"+size, asking(size))
		pv := s.bound(claim)
		if got := pv.Spec.Capacity.Storage().Value(); got != want {
			t.Errorf("a claim on %s has a volume of %d bytes, want %d", size, got, want)
		}
		s.deleteClaim(claim)
		s.gone(claim)
	}
}

// Without --default-fstype a volume has no fsType, as external-provisioner has
// it; what the class says counts.
func TestProvisioner328FilesystemOfTheClass(t *testing.T) {
	s := inWorld(t)
	s.class()
	_, err := s.NewClass(s.ctx, s.name+"-ext4", with(map[string]string{"csi.storage.k8s.io/fstype": "ext4"}))
	s.must(err)
	for class, want := range map[string]string{s.name: "", s.name + "-ext4": "ext4"} {
		claim := s.claim("-"+class, func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = &class })
		if pv := s.bound(claim); pv.Spec.CSI.FSType != want {
			t.Errorf("class %s: fsType %q, want %q", class, pv.Spec.CSI.FSType, want)
		}
		if asked := s.request(s.calls("CreateVolume", claim)[0]); asked.VolumeCapabilities[0].Mount.FsType != want || len(asked.Parameters) > 0 {
			t.Errorf("class %s: asked for %+v", class, asked)
		}
		s.deleteClaim(claim)
		s.gone(claim)
	}
}
