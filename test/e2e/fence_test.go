package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const unpublish = "ControllerUnpublishVolume"

// inject makes calls of the driver's controller about the database's volume on
// the pod's node go wrong until the test ends.
func (db *database) inject(ctx context.Context, f simctl.Fault) (id string) {
	db.t.Helper()
	f.Volume, f.Node = db.id(), db.pod.Spec.NodeName
	return inject(ctx, db.t, db.Driver, f)
}

// inject makes calls of a process of the driver go wrong until the test ends.
func inject(ctx context.Context, t *testing.T, driver *simctl.Client, f simctl.Fault) (id string) {
	t.Helper()
	id, err := driver.Inject(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		faults, err := driver.Faults(ctx)
		if err == nil && slices.ContainsFunc(faults, func(f simctl.FaultStatus) bool { return f.ID == id }) {
			err = driver.Clear(ctx, id)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return id
}

func (db *database) hits(ctx context.Context, id string, n int) {
	db.t.Helper()
	if _, err := db.Driver.AwaitHits(ctx, id, n); err != nil {
		db.t.Fatal(err)
	}
}

// A fence that fails is tried again, and the walk completes.
func TestCSM199_FenceFailsTwice(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "csm199-twice", node)
	db.hangs(ctx)
	id := db.inject(ctx, simctl.Fault{Method: unpublish, Code: codes.Internal, Message: "array is busy", Times: 2})
	db.fails(ctx)
	db.hits(ctx, id, 2)
	db.moves(ctx)
}

// While a fence fails, nothing is deleted, and an event says so; once the
// storage obeys, the walk completes.
func TestCSM199_FenceFailsUntilTheStorageObeys(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "csm199-ever", node)
	db.hangs(ctx)
	id := db.inject(ctx, simctl.Fault{Method: unpublish, Code: codes.PermissionDenied, Message: "array says no"})
	db.fails(ctx)
	db.awaitEvent(ctx, "FenceFailed", "array says no")
	db.hits(ctx, id, 3)
	db.podStays(ctx)
	if va := db.liveAttachment(ctx); va == nil || va.DeletionTimestamp != nil {
		t.Errorf("the VolumeAttachment was deleted without a fence: %v", va)
	}
	if err := w.Driver.Clear(ctx, id); err != nil {
		t.Fatal(err)
	}
	db.moves(ctx)
}

// The node is no longer registered with the driver: the fence goes by the node
// ID that was recorded when the volume was published.
func TestCSM1216_NodeNoLongerRegistered(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "csm1216", node)
	csiNodes := w.Client.StorageV1().CSINodes()
	csiNode, err := csiNodes.Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	drivers := csiNode.Spec.Drivers
	set := func(ctx context.Context, drivers []storagev1.CSINodeDriver) {
		now, err := csiNodes.Get(ctx, node, metav1.GetOptions{})
		if err == nil {
			now.Spec.Drivers = drivers
			_, err = csiNodes.Update(ctx, now, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		set(ctx, drivers)
	})
	db.hangs(ctx)
	set(ctx, nil)
	db.fails(ctx)
	db.moves(ctx)
	ledger, err := w.Driver.Ledger(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(ledger, func(e simctl.Entry) bool {
		return e.Op == "controller-unpublish" && e.Volume == db.id() && e.Node == node
	}) {
		t.Errorf("the volume was never unpublished from %s", node)
	}
}

// Detached is what has no VolumeAttachment any more: a status that says
// attached=false frees nothing while the storage has not answered.
func TestExternalAttacher215_StatusIsNoProofOfDetach(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "attacher215", node)
	old := db.pod
	db.hangs(ctx)
	id := db.inject(ctx, simctl.Fault{Method: unpublish, Hang: true})
	db.fails(ctx)
	db.hits(ctx, id, 1)
	va := db.attachment(old.Spec.NodeName)
	_, err := w.Client.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, []byte(`{"status":{"attached":false}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	// The call hangs into its deadline and is made again: the status was seen.
	db.hits(ctx, id, 2)
	db.podStays(ctx)
	publications, err := w.Driver.Publications(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range publications {
		if p.Volume == db.id() && p.Node != old.Spec.NodeName {
			t.Errorf("the volume is published to %s as well", p.Node)
		}
	}
	if err := w.Driver.Release(ctx, id); err != nil {
		t.Fatal(err)
	}
	// When it runs elsewhere is not awaited: kube-controller-manager believed the
	// status, tries to attach to the old node again, and gives up after 2 minutes.
	db.await(ctx, "the old pod and its VolumeAttachment are gone", func() bool {
		pod := w.Pod(rig.Namespace, old.Name)
		return (pod == nil || pod.UID != old.UID) && db.attachment(old.Spec.NodeName) == nil
	})
}

// A detach that the storage answers with NOT_FOUND is shown in the status, tried
// again ever more rarely, and ends when the storage answers.
func TestLinstorCSI52_UnpublishAnswersNotFound(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "linstor52", node)
	id := db.inject(ctx, simctl.Fault{Method: unpublish, Code: codes.NotFound, Message: "no such resource"})
	if err := w.Client.AppsV1().StatefulSets(rig.Namespace).Delete(ctx, db.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Client.CoreV1().Pods(rig.Namespace).Delete(ctx, db.pod.Name, deleteNow(db.pod.UID)); err != nil {
		t.Fatal(err)
	}
	db.hits(ctx, id, 1)
	begun := time.Now()
	db.await(ctx, "the VolumeAttachment tells of the error", func() bool {
		va := db.attachment(node)
		return va != nil && va.Status.DetachError != nil && va.Status.DetachError.Message != ""
	})
	db.hits(ctx, id, 4)
	// Three pauses from 1 s, doubling, of which jitter leaves half at the least.
	if took := time.Since(begun); took < 3*time.Second {
		t.Errorf("three more calls were made within %v", took)
	}
	if err := w.Driver.Clear(ctx, id); err != nil {
		t.Fatal(err)
	}
	db.await(ctx, "the VolumeAttachment is gone", func() bool { return db.attachment(node) == nil })
}

// The leader is killed after it has recorded the fence and before the storage
// has answered: the other replica completes it from the record. What was moved
// before that, while the other replica followed, is not moved again.
func TestPiraeus13_LeaderKilledInTheMiddle(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	settled := w.database(ctx, t, "piraeus13-settled", node)
	db := w.database(ctx, t, "piraeus13", node)
	settled.fails(ctx)
	settled.moves(ctx)
	db.hangs(ctx)
	id := db.inject(ctx, simctl.Fault{Method: unpublish, Hang: true})
	db.fails(ctx)
	db.hits(ctx, id, 1)
	if va := db.liveAttachment(ctx); va == nil || !volume.Fenced(va) {
		t.Fatalf("the storage was asked before the fence was recorded: %v", va)
	}
	leader := w.Leader()
	if leader == nil {
		t.Fatal("nobody leads")
	}
	leader.Kill()
	killed := time.Now()
	if err := w.Driver.Clear(ctx, id); err != nil {
		t.Fatal(err)
	}
	db.await(ctx, "the other replica leads", func() bool {
		now := w.Leader()
		return now != nil && now != leader
	})
	// The leases run out together: not one after the other, which takes three
	// times as long.
	if took := time.Since(killed); took > 2*leaseDuration {
		t.Errorf("the other replica led %v after the kill, the leases last %v", took, leaseDuration)
	}
	db.moves(ctx)
	t.Logf("%v from the kill to the first write elsewhere", time.Since(killed))
	settled.untouched(ctx)
	if n := len(w.deletions(settled.pod.Name)); n != 1 {
		t.Errorf("%d pods of %s were asked to go, want the first alone", n, settled.name)
	}
	if _, err := w.StartSidecar(ctx); err != nil {
		t.Fatal(err)
	}
}

// The hold is put on once and taken off once, when the node reaches the volume
// again, and other people's taints stay.
func TestPiraeus23_HoldComesOffOnce(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "piraeus23", node)
	foreign := v1.Taint{Key: "example.com/other", Value: "x", Effect: v1.TaintEffectPreferNoSchedule}
	taint := func(ctx context.Context, taints ...v1.Taint) {
		live, err := w.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil {
			live.Spec.Taints = append(slices.DeleteFunc(live.Spec.Taints, func(t v1.Taint) bool { return t.Key == foreign.Key }), taints...)
			_, err = w.Client.CoreV1().Nodes().Update(ctx, live, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	taint(ctx, foreign)
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		taint(ctx)
	})
	begun := time.Now()
	db.fails(ctx)
	db.moves(ctx)
	db.heals(ctx)
	count := func() (on, off int) {
		for _, ch := range w.Observer.Changes() {
			was, ok := ch.Old.(*v1.Node)
			is, too := ch.New.(*v1.Node)
			if !ok || !too || is.Name != node || ch.At.Before(begun) {
				continue
			}
			if !slices.ContainsFunc(is.Spec.Taints, func(t v1.Taint) bool { return t.Key == foreign.Key && t.Effect == foreign.Effect }) {
				t.Error("the other taint was taken away")
			}
			switch {
			case !held(was) && held(is):
				on++
			case held(was) && !held(is):
				off++
			}
		}
		return on, off
	}
	// The changes come a moment after the Node that they led to.
	db.await(ctx, "the hold comes off", func() bool { _, off := count(); return off > 0 && !held(w.Node(node)) })
	on, off := count()
	if on != 1 || off != 1 {
		t.Errorf("the hold was put on %d times and taken off %d times", on, off)
	}
}

// A volume that fails wherever its pod comes up is not chased through the
// cluster: after the free moves it waits, and an event says so.
func TestPiraeus20_FailsAgainAsSoonAsItRuns(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "piraeus20", node)
	for range 2 {
		db.fails(ctx)
		db.moves(ctx)
	}
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverDelayed", "were moved 2 times")
	db.untouched(ctx)
	if n := len(w.deletions(db.pod.Name)); n != 2 {
		t.Errorf("%d pods were deleted, want 2", n)
	}
}
