package provision

import (
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// misbehave makes the driver answer wrongly for one claim; only one test at a time
// may.
func (s *scene) misbehave(how misbehave.Create, claim *v1.PersistentVolumeClaim) {
	s.t.Helper()
	s.must(s.Driver.Misbehave(s.ctx, simctl.Misbehavior{Create: how, Name: pvName(claim)}))
}

func (s *scene) behave() {
	s.t.Helper()
	s.must(s.Driver.Misbehave(s.ctx, simctl.Misbehavior{}))
}

// Replies that break the contract of CSI leave no volume behind, are told on the
// claim, and are forgotten once the driver does better.
func TestRepliesThatBreakTheContract(t *testing.T) {
	inWorld(t)
	for name, test := range map[string]func(*scene){
		"smaller": smallerVolume, "no-source": emptyClone, "no-volume": replyWithoutVolume,
		"empty-topology": emptyTopology, "other-id": otherVolume,
	} {
		t.Run(name, func(t *testing.T) { test(newScene(t, common.world)) })
	}
}

// A volume that is too small is deleted again.
func smallerVolume(s *scene) {
	claim := s.held("")
	s.misbehave(misbehave.Smaller, claim)
	s.selectNode(claim, "node-1")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "fewer than the 1073741824 that the claim asks for")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, volumeID(claim)+" is deleted again")
	s.behave()
	s.bound(claim)
	if made, deleted := len(s.calls("CreateVolume", claim)), len(s.calls("DeleteVolume", claim)); made != deleted+1 || deleted == 0 {
		s.t.Errorf("%d CreateVolume and %d DeleteVolume", made, deleted)
	}
	s.deleteClaim(claim)
	s.gone(claim)
}

// So is one that is not a copy of its source, for all that the driver says.
func emptyClone(s *scene) {
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	claim := s.held("-copy", clone(origin.Name))
	s.misbehave(misbehave.NoSource, claim)
	s.selectNode(claim, "node-1")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "does not say content_source")
	s.behave()
	s.bound(claim)
	if made, deleted := len(s.calls("CreateVolume", claim)), len(s.calls("DeleteVolume", claim)); made != deleted+1 || deleted == 0 {
		s.t.Errorf("%d CreateVolume and %d DeleteVolume", made, deleted)
	}
	for _, c := range []*v1.PersistentVolumeClaim{claim, origin} {
		s.deleteClaim(c)
		s.gone(c)
	}
}

// A volume that is not named cannot be deleted: it is asked for again until it is
// named, also when the claim has gone.
func replyWithoutVolume(s *scene) {
	claim := s.held("")
	s.misbehave(misbehave.NoVolume, claim)
	s.selectNode(claim, "node-1")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "without a volume ID; this is a fault of the driver")
	s.deleteClaim(claim)
	s.claimGone(claim)
	if !s.exists(claim) {
		s.t.Error("the volume is gone, and nobody knew it")
	}
	s.behave()
	s.await("the volume is deleted", func() bool { return !s.exists(claim) })
	s.gone(claim)
	s.sameRequests(claim)
}

// Topologies without segments would make a PersistentVolume that the API server
// rejects: they say nothing.
func emptyTopology(s *scene) {
	claim := s.held("")
	s.misbehave(misbehave.EmptyTopology, claim)
	s.selectNode(claim, "node-1")
	if pv := s.bound(claim); pv.Spec.NodeAffinity != nil {
		s.t.Errorf("the PersistentVolume has the affinity %v", pv.Spec.NodeAffinity)
	}
	s.behave()
	s.once("CreateVolume", claim)
	s.deleteClaim(claim)
	s.gone(claim)
}

// A driver that makes another volume for the same name gets what it says: the
// PersistentVolume stands for the one that was told, and that one is deleted. The
// first, which was never told, is beyond anybody's knowledge but the driver's.
func otherVolume(s *scene) {
	claim := s.held("")
	s.misbehave(misbehave.OtherID, claim)
	s.failCreate(claim, simctl.Fault{Code: codes.DeadlineExceeded, Effect: true, Times: 1})
	s.selectNode(claim, "node-1")
	pv := s.bound(claim)
	s.behave()
	if pv.Spec.CSI.VolumeHandle != state.VolumeID(pvName(claim)+"-other-1") {
		s.t.Errorf("the PersistentVolume stands for %s", pv.Spec.CSI.VolumeHandle)
	}
	s.sameRequests(claim)
	s.deleteClaim(claim)
	s.await("the PersistentVolume is gone", func() bool { return s.pv(pv.Name) == nil })
	if !s.exists(claim) {
		s.t.Error("a volume was deleted that no PersistentVolume stood for")
	}
	s.deleteVolume(volumeID(claim))
}
