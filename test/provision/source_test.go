package provision

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// fill writes into the volume of a claim, past every node.
func (s *scene) fill(claim *v1.PersistentVolumeClaim, text string) {
	s.t.Helper()
	data := filepath.Join(s.StateDir(), "volumes", volumeID(claim), "data")
	s.must(os.WriteFile(filepath.Join(data, "text"), []byte(text), 0o600))
}

func (s *scene) holds(claim *v1.PersistentVolumeClaim, text string) {
	s.t.Helper()
	got, err := s.VolumeFile(pvName(claim), "text")
	if err != nil || string(got) != text {
		s.t.Errorf("the volume of claim %s holds %q, %v, want %q", claim.Name, got, err, text)
	}
}

// A volume is made of a snapshot, which is protected meanwhile and not after.
func TestSnapshotIsRestored(t *testing.T) {
	s := inWorld(t)
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	s.fill(origin, s.name)
	s.snapshot(origin, rig.Driver)
	claim := s.held("", s.fromSnapshot)
	f := s.failCreate(claim, simctl.Fault{Code: codes.Internal, Hang: true, Times: 1})
	s.selectNode(claim, "node-1")
	f.hits(1)
	if !slices.Contains(s.theSnapshot().GetFinalizers(), source.SnapshotFinalizer) {
		t.Error("the snapshot is not protected while a volume is made of it")
	}
	s.must(s.Driver.Release(s.ctx, f.id))
	s.bound(claim)
	s.holds(claim, s.name)
	s.await("the snapshot is protected no more", func() bool { return len(s.theSnapshot().GetFinalizers()) == 0 })
	s.deleteSnapshot()
	s.snapshotGone()
	for _, c := range []*v1.PersistentVolumeClaim{origin, claim} {
		s.deleteClaim(c)
		s.gone(c)
	}
}

// A claim is cloned. Its finalizer comes off when it is deleted.
func TestClaimIsCloned(t *testing.T) {
	s := inWorld(t)
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	s.fill(origin, s.name)
	claim := s.claim("", clone(origin.Name))
	s.bound(claim)
	s.holds(claim, s.name)
	s.deleteClaim(origin)
	s.claimGone(origin)
	s.gone(origin)
	s.deleteClaim(claim)
	s.gone(claim)
}

// The source is deleted while it is cloned: it stays until the clone is made, and
// then goes.
func TestSourceIsDeletedWhileItIsCloned(t *testing.T) {
	s := inWorld(t)
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	claim := s.held("", clone(origin.Name))
	f := s.failCreate(claim, simctl.Fault{Code: codes.Aborted})
	s.selectNode(claim, "node-1")
	f.hits(1)
	s.deleteClaim(origin)
	f.hits(3)
	if now := s.Claim(origin.Namespace, origin.Name); now == nil || !slices.Contains(now.Finalizers, source.CloneFinalizer) {
		t.Errorf("the source is %v while it is cloned", now)
	}
	f.clear()
	s.bound(claim)
	s.claimGone(origin)
	s.gone(origin)
	s.deleteClaim(claim)
	s.gone(claim)
}

// Claim and snapshot are deleted while the driver is at it: the volume was left,
// or, once snapshots with a forgotten finalizer were swept, the snapshot went
// before the driver had done with it. The snapshot stays, over sweeps too, until
// the same call has succeeded and its volume is deleted.
func TestProvisioner1449ClaimAndSnapshotDeletedWhileRestoring(t *testing.T) {
	s := inWorld(t)
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	s.snapshot(origin, rig.Driver)
	claim := s.held("", s.fromSnapshot)
	f := s.failCreate(claim, simctl.Fault{Code: codes.Aborted})
	s.selectNode(claim, "node-1")
	f.hits(1)
	s.deleteClaim(claim)
	s.claimGone(claim)
	s.deleteSnapshot()
	// The pauses before the sixth call sum up to more than two sweeps.
	f.hits(6)
	if snap := s.theSnapshot(); snap == nil || !slices.Contains(snap.GetFinalizers(), source.SnapshotFinalizer) {
		t.Errorf("the snapshot is %v while a volume is made of it", snap)
	}
	f.clear()
	s.snapshotGone()
	s.gone(claim)
	if n := s.sameRequests(claim); n < 7 {
		t.Errorf("%d CreateVolume, want at least 7", n)
	}
	calls := s.calls("CreateVolume", claim)
	if last := calls[len(calls)-1]; last.Code != "OK" {
		t.Errorf("the last CreateVolume: %s", last.Code)
	}
	s.once("DeleteVolume", claim)
	s.deleteClaim(origin)
	s.gone(origin)
}

// A claim with a data source that others know is theirs. It is told so, and
// nothing is called.
func TestPopulatorsClaimIsLeftAlone(t *testing.T) {
	s := inWorld(t)
	s.class()
	claim := s.claim("", func(c *v1.PersistentVolumeClaim) {
		group := "example.com"
		c.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: &group, Kind: "Populator", Name: "it"}
	})
	s.told(claim.Name, provisioner.ReasonProvisioning, "Assuming an external populator will provision the volume")
	beside := s.claim("-beside")
	s.bound(beside)
	s.never("CreateVolume", claim)
	if e := s.Events(claim.Name, provisioner.ReasonProvisioningFailed); len(e) > 0 {
		t.Errorf("a warning: %s", e[0].Message)
	}
	for _, c := range []*v1.PersistentVolumeClaim{claim, beside} {
		s.deleteClaim(c)
		s.gone(c)
	}
}
