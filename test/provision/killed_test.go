package provision

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// leader waits until a replica leads.
func (s *scene) leader() (leads *rig.Sidecar) {
	s.t.Helper()
	s.await("a replica leads", func() bool { leads = s.Leader(); return leads != nil })
	return leads
}

// kill ends a replica at once, in the middle of whatever it does.
func (s *scene) kill(replica *rig.Sidecar) {
	s.t.Helper()
	replica.Kill()
	s.ends(replica)
}

// ends waits until a replica has ended.
func (s *scene) ends(replica *rig.Sidecar) {
	s.t.Helper()
	s.ended[replica] = true
	select {
	case <-replica.Done():
	case <-s.ctx.Done():
		s.t.Fatal("a replica does not end")
	}
}

// All replicas are killed while a call whose outcome is open is on its way, and
// the claim is deleted while nobody runs: the volume was left at the driver.
// Whoever comes finds what was begun, makes the same call and deletes the volume.
func TestProvisioner486KilledInTheMiddleAndClaimDeleted(t *testing.T) {
	s := alone(t)
	s.leader()
	claim := s.held("")
	slow := s.failCreate(claim, simctl.Fault{Hang: true, Effect: true})
	s.selectNode(claim, "node-1")
	s.told(claim.Name, provisioner.ReasonProvisioningFailed, "DeadlineExceeded")
	slow.hits(2)
	for _, replica := range s.living() {
		s.kill(replica)
	}
	slow.clear()
	s.deleteClaim(claim)
	s.claimGone(claim)
	if !s.exists(claim) {
		t.Fatal("no volume was made")
	}
	_, err := s.StartSidecar(s.ctx)
	s.must(err)
	s.await("the volume is deleted", func() bool { return !s.exists(claim) })
	s.gone(claim)
	if n := s.sameRequests(claim); n != 3 {
		t.Errorf("%d CreateVolume, want two before the end and one after", n)
	}
	s.once("DeleteVolume", claim)
}

// The leader is killed between CreateVolume and the PersistentVolume. The other
// replica takes up what was begun.
func TestLeaderIsKilledBeforeThePersistentVolumeIsSaved(t *testing.T) {
	s := alone(t)
	s.class()
	origin := s.claim("-origin")
	s.bound(origin)
	s.snapshot(origin, rig.Driver)
	stays, leaves, restored := s.held("-stays"), s.held("-leaves"), s.held("-restored", s.fromSnapshot)
	all := []*v1.PersistentVolumeClaim{stays, leaves, restored}
	var slow []*injected
	first := s.leader()
	for _, claim := range all {
		f := s.failCreate(claim, simctl.Fault{Hang: true, Effect: claim != restored})
		s.selectNode(claim, "node-1")
		f.hits(1)
		slow = append(slow, f)
	}
	s.kill(first)
	began := time.Now()
	for i, claim := range all {
		slow[i].clear()
		if claim != stays {
			s.deleteClaim(claim)
		}
	}
	t.Run("one volume, and the other replica saves its PersistentVolume", func(t *testing.T) {
		s := s.in(t)
		pv := s.bound(stays)
		t.Logf("bound %v after the kill", time.Since(began))
		if s.leader() == first || pv.Spec.CSI.VolumeHandle != volumeID(stays) {
			t.Errorf("PersistentVolume %s stands for %s", pv.Name, pv.Spec.CSI.VolumeHandle)
		}
		s.sameRequests(stays)
		s.deleteClaim(stays)
		s.gone(stays)
	})
	t.Run("no volume is left of a claim that was deleted meanwhile", func(t *testing.T) {
		s := s.in(t)
		s.await("the volume is deleted", func() bool { return !s.exists(leaves) })
		s.gone(leaves)
		s.sameRequests(leaves)
	})
	// The finalizer of the source was on, and its claim deleted, when the process
	// that had put it there ended: the snapshot could never be deleted.
	t.Run("Provisioner1507 the snapshot is free", func(t *testing.T) {
		s := s.in(t)
		s.await("the snapshot is protected no more", func() bool { return len(s.theSnapshot().GetFinalizers()) == 0 })
		s.gone(restored)
		s.deleteSnapshot()
		s.snapshotGone()
		s.sameRequests(restored)
	})
	s.deleteClaim(origin)
	s.gone(origin)
}

// in is the scene in a part of the test.
func (s *scene) in(t *testing.T) *scene {
	part := *s
	part.t = t
	return &part
}

// The leader is stopped, as by a machine that hangs, until another leads and has
// finished what was begun. When it goes on it ends, and has done nothing more.
func TestPausedLeaderDoesNothingMore(t *testing.T) {
	s := alone(t)
	claims := []*v1.PersistentVolumeClaim{s.held("-stays"), s.held("-leaves")}
	old := s.leader()
	var slow []*injected
	for _, claim := range claims {
		f := s.failCreate(claim, simctl.Fault{Hang: true, Effect: true})
		s.selectNode(claim, "node-1")
		f.hits(1)
		slow = append(slow, f)
	}
	s.must(old.Pause())
	s.await("the other replica leads", func() bool {
		for _, replica := range s.living() {
			if replica != old && replica.Get("/readyz") == nil {
				body, err := replica.Body("/debug/leader")
				return err == nil && strings.HasPrefix(body, "leads")
			}
		}
		return false
	})
	for _, f := range slow {
		f.clear()
	}
	s.bound(claims[0])
	s.deleteClaim(claims[1])
	s.gone(claims[1])
	s.must(old.Continue())
	s.ends(old)
	for _, claim := range claims {
		s.sameRequests(claim)
	}
	s.deleteClaim(claims[0])
	s.gone(claims[0])
}

// The journal is deleted by hand while a volume is on its way. It is written anew
// with all that is in it, so that a kill after that loses nothing either.
func TestJournalIsDeletedByHand(t *testing.T) {
	s := alone(t)
	first := s.leader()
	claim := s.held("")
	slow := s.failCreate(claim, simctl.Fault{Hang: true, Effect: true})
	s.selectNode(claim, "node-1")
	slow.hits(1)
	pages := s.Client.CoreV1().ConfigMaps(rig.SidecarNamespace)
	s.must(pages.DeleteCollection(s.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: journal.LabelJournal}))
	s.class()
	beside := s.claim("-beside")
	s.bound(beside)
	list, err := pages.List(s.ctx, metav1.ListOptions{LabelSelector: journal.LabelJournal})
	s.must(err)
	if len(list.Items) != 1 || list.Items[0].Data[string(claim.UID)] == "" {
		t.Fatalf("the journal after its deletion: %+v", list.Items)
	}
	s.kill(first)
	slow.clear()
	s.deleteClaim(claim)
	s.await("the volume is deleted", func() bool { return !s.exists(claim) })
	s.gone(claim)
	s.sameRequests(claim)
	s.deleteClaim(beside)
	s.gone(beside)
}

// The driver goes away in the middle of a call, and a replica starts while it is
// away and has told nothing of what it can do. Nobody ends or crashes, and all
// goes on when it is back.
func TestProvisionerPull1193DriverIsAway(t *testing.T) {
	s := alone(t)
	s.leader()
	claim := s.held("")
	slow := s.failCreate(claim, simctl.Fault{Hang: true, Effect: true, Times: 1})
	s.selectNode(claim, "node-1")
	slow.hits(1)
	s.must(s.Driver.DropSocket(s.ctx, 2*time.Second))
	before := len(s.living())
	_, err := s.StartSidecar(s.ctx)
	s.must(err)
	s.bound(claim)
	s.sameRequests(claim)
	if now := len(s.living()); now != before+1 {
		t.Errorf("%d replicas run, want %d", now, before+1)
	}
	s.deleteClaim(claim)
	s.gone(claim)
	s.must(s.living()[before].Stop())
}
