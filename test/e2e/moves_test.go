package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// Every failure of a volume is acted on, not only the first. It is alone, since
// it fails on nodes that it has not taken.
func TestPiraeus7_SecondFailoverOfTheSameVolume(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "piraeus7", node)
	first := db.pod.Spec.NodeName
	db.fails(ctx)
	db.moves(ctx)
	second := db.pod.Spec.NodeName
	db.fails(ctx)
	db.moves(ctx)
	for _, node := range []string{first, second} {
		db.await(ctx, "the VolumeAttachment on "+node+" is gone", func() bool { return db.attachment(node) == nil })
	}
}

// On a node that answers, pods are asked to go and the kubelet stops them: no
// pod object vanishes while its containers run.
func TestPiraeusPR16_ReadyNodeIsAsked(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "pr16-asked", node)
	old := db.pod
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverEvicted", "fails on node "+old.Spec.NodeName)
	db.moves(ctx)
	for _, ch := range w.Observer.Changes() {
		if va, ok := ch.New.(*storagev1.VolumeAttachment); ok && onNode(va, db.pv.Name, old.Spec.NodeName) && volume.Fenced(va) {
			t.Error("a fence was recorded, although the pod went when it was asked to")
		}
		if pod, ok := ch.New.(*v1.Pod); ok && pod.UID == old.UID && pod.DeletionTimestamp != nil && *pod.DeletionGracePeriodSeconds == 0 && pod.Status.Phase == v1.PodRunning {
			t.Error("the pod was force-deleted")
		}
	}
}

// A pod that does not go when it is asked is cut off and then removed.
func TestPiraeusPR16_StuckPodIsFencedAndGone(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "pr16-stuck", node)
	db.hangs(ctx)
	db.fails(ctx)
	db.moves(ctx)
	if len(w.Events("pr16-stuck-0", "ForceDeleted")) == 0 {
		t.Error("no event says that the pod was deleted by force")
	}
}

// The pod object is gone before the VolumeAttachment goes, and the new one is
// attached in seconds, not after minutes of Multi-Attach errors.
func TestLonghorn2947_PodGoesBeforeItsAttachment(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "longhorn2947", node)
	old := db.pod
	db.hangs(ctx)
	begun := time.Now()
	db.fails(ctx)
	db.moves(ctx)
	at := func(what string, match func(rig.Change) bool) time.Time {
		at, ok := w.Observer.First(begun, match)
		if !ok {
			t.Fatalf("it was never seen that %s", what)
		}
		return at
	}
	signal := at("the pod's status tells of its volume", func(ch rig.Change) bool {
		pod, ok := ch.New.(*v1.Pod)
		return ok && pod.UID == old.UID && slices.ContainsFunc(pod.Status.VolumeHealth, func(h v1.PodVolumeHealth) bool { return len(h.HealthConditions) > 0 })
	})
	podGone := at("the old pod is gone", func(ch rig.Change) bool {
		pod, ok := ch.Old.(*v1.Pod)
		return ok && ch.Verb == "deleted" && pod.UID == old.UID
	})
	leaving := at("the old VolumeAttachment is being deleted", func(ch rig.Change) bool {
		va, ok := ch.New.(*storagev1.VolumeAttachment)
		gone, was := ch.Old.(*storagev1.VolumeAttachment)
		return ok && onNode(va, db.pv.Name, old.Spec.NodeName) && va.DeletionTimestamp != nil ||
			was && ch.Verb == "deleted" && onNode(gone, db.pv.Name, old.Spec.NodeName)
	})
	attached := at("the new VolumeAttachment is attached", func(ch rig.Change) bool {
		va, ok := ch.New.(*storagev1.VolumeAttachment)
		return ok && onNode(va, db.pv.Name, db.pod.Spec.NodeName) && va.Status.Attached
	})
	if leaving.Before(podGone) {
		// Two watches: the order is that of the API server only within a few milliseconds.
		if early := podGone.Sub(leaving); early > 100*time.Millisecond {
			t.Errorf("the VolumeAttachment was deleted %v before the pod was gone", early)
		}
	}
	t.Logf("signal to new attachment: %v", attached.Sub(signal))
	if took := attached.Sub(signal); took > 30*time.Second {
		t.Errorf("it took %v from the signal until the volume was attached elsewhere", took)
	}
}

// Somebody deletes the VolumeAttachment by hand while the pod is stuck, and
// Kubernetes makes it again, since the pod object still exists. The pod is moved
// all the same.
func TestLonghorn5937_Kubernetes106151_AttachmentMadeAgainUnderTheMove(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "longhorn5937", node)
	db.hangs(ctx)
	old := db.attachment(db.pod.Spec.NodeName)
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverEvicted", "")
	if err := w.Client.StorageV1().VolumeAttachments().Delete(ctx, old.Name, deleteNow(old.UID)); err != nil {
		t.Fatal(err)
	}
	db.moves(ctx)
	db.await(ctx, "the old node's VolumeAttachment is gone for good", func() bool { return db.attachment(old.Spec.NodeName) == nil })
	if _, again := w.Observer.First(old.CreationTimestamp.Time, func(ch rig.Change) bool {
		va, ok := ch.New.(*storagev1.VolumeAttachment)
		return ok && onNode(va, db.pv.Name, old.Spec.NodeName) && va.UID != old.UID
	}); !again {
		t.Error("the VolumeAttachment was not made again, so nothing was tested")
	}
}

// onNode reports whether it is the VolumeAttachment of the volume on the node.
func onNode(va *storagev1.VolumeAttachment, pv, node string) bool {
	return va.Spec.NodeName == node && va.Spec.Source.PersistentVolumeName != nil && *va.Spec.Source.PersistentVolumeName == pv
}

// hangs makes the pod's node unable to stop containers until the test ends.
func (db *database) hangs(ctx context.Context) {
	db.t.Helper()
	node := db.nodeNamed(db.pod.Spec.NodeName)
	if err := node.Agent.Inject(ctx, nodectl.HangKill); err != nil {
		db.t.Fatal(err)
	}
	db.t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := node.Agent.Release(ctx); err != nil {
			db.t.Error(err)
		}
	})
}
