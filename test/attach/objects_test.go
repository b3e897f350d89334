package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/grpc/codes"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// The whole PersistentVolume is gone, its finalizers taken off by hand: the volume
// is detached by what its VolumeAttachment has recorded. Where nothing is recorded,
// as by a hand that wrote our finalizer, that is said, and that is all.
func TestEA235_PersistentVolumeGone(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "ea235")
	w.attached(ctx, t, "ea235-a", "ea235", "node-1")
	if err := w.Client.CoreV1().PersistentVolumes().Delete(ctx, "ea235", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.strip(ctx, t, "pv", "ea235")
	w.await(ctx, t, "the PersistentVolume is gone", func() bool { return w.pv(ctx, t, "ea235") == nil })
	w.remove(ctx, t, "ea235-a")
	w.gone(ctx, t, "ea235-a")
	w.wire.wantStory(t, handle("ea235"), "publish node-1, unpublish node-1")

	w.attachment(ctx, t, "ea235-b", "ea235-nowhere", "node-1", func(va *storagev1.VolumeAttachment) { va.Finalizers = []string{finalizer} })
	w.remove(ctx, t, "ea235-b")
	w.await(ctx, t, "its status says why it stays", func() bool {
		return says(w.status("ea235-b").DetachError, "PersistentVolume ea235-nowhere does not exist")
	})
	w.lists(ctx, t, 3)
	if n := w.writes(t, "volumeattachments", "ea235-b"); n > 2 {
		t.Errorf("%d writes about what cannot be mended", n)
	}
	w.await(ctx, t, "an event says so", func() bool { return len(w.Events("ea235-b", attach.ReasonDetachFailed)) == 1 })
	w.strip(ctx, t, "va", "ea235-b")
}

// A VolumeAttachment whose finalizer is taken off by hand while its detach hangs
// vanishes, and one of the same name is made at once. It has nothing of the old
// one: the volume is published to it after the unpublish, with an intent of its own.
func TestRecreatedUnderTheSameName(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "again")
	old := w.attached(ctx, t, "again-a", "again", "node-1")
	id, clear := w.inject(ctx, t, simctl.Fault{Method: unpublish, Volume: handle("again"), Hang: true, Times: 1})
	w.remove(ctx, t, "again-a")
	w.hits(ctx, t, id, 1)
	w.strip(ctx, t, "va", "again-a")
	w.gone(ctx, t, "again-a")
	w.attachment(ctx, t, "again-a", "again", "node-1")
	clear()
	va := w.awaitAttached(ctx, t, "again-a")
	if va.UID == old.UID || !slices.Contains(va.Finalizers, finalizer) || va.Annotations[volume.AnnotationNodeID] != "node-1" {
		t.Errorf("it was attached without an intent: %v %v", va.Finalizers, va.Annotations)
	}
	w.wire.wantStory(t, handle("again"), "publish node-1, unpublish node-1, publish node-1")
}

// The finalizer of a VolumeAttachment in use is taken off by hand. Its deletion
// then goes through at once, and the volume is detached all the same, before
// another node gets it.
func TestFinalizerStripped(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "strip")
	w.attached(ctx, t, "strip-a", "strip", "node-1")
	w.strip(ctx, t, "va", "strip-a")
	w.remove(ctx, t, "strip-a")
	w.attached(ctx, t, "strip-b", "strip", "node-2")
	w.wire.wantStory(t, handle("strip"), "publish node-1, unpublish node-1, publish node-2")
}

// A PersistentVolume that is deleted stays for as long as it is attached, is not
// attached anew, and then goes.
func TestPersistentVolumeDeletedWhileAttached(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "leaving", func(pv *v1.PersistentVolume) {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	})
	w.attached(ctx, t, "leaving-a", "leaving", "node-1")
	if err := w.Client.CoreV1().PersistentVolumes().Delete(ctx, "leaving", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.attachment(ctx, t, "leaving-b", "leaving", "node-2")
	w.await(ctx, t, "the second one says why it is not attached", func() bool {
		return says(w.status("leaving-b").AttachError, "PersistentVolume leaving is being deleted")
	})
	w.remove(ctx, t, "leaving-b")
	w.gone(ctx, t, "leaving-b")
	if pv := w.pv(ctx, t, "leaving"); pv == nil || !slices.Contains(pv.Finalizers, finalizer) {
		t.Fatalf("the PersistentVolume is not kept for its detach: %v", pv)
	}
	w.remove(ctx, t, "leaving-a")
	w.gone(ctx, t, "leaving-a")
	w.await(ctx, t, "the PersistentVolume is gone", func() bool { return w.pv(ctx, t, "leaving") == nil })
	w.wire.wantStory(t, handle("leaving"), "publish node-1, unpublish node-1")
}

// Somebody else writes finalizers all the time. The server refuses new ones on
// what is being deleted, so that a list which is merely stale would be refused.
func TestEP1217_FinalizersOfOthers(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "ep1217")
	pvs := w.Client.CoreV1().PersistentVolumes()
	theirs := func(op, path, value string) {
		body := fmt.Sprintf(`[{"op":%q,"path":%q,"value":%q}]`, op, path, value)
		if op == "remove" {
			body = fmt.Sprintf(`[{"op":"remove","path":%q}]`, path)
		}
		if _, err := pvs.Patch(ctx, "ep1217", types.JSONPatchType, []byte(body), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.await(ctx, t, "Kubernetes protects the PersistentVolume", func() bool { return len(w.pv(ctx, t, "ep1217").Finalizers) > 0 })
	w.attachment(ctx, t, "ep1217-a", "ep1217", "node-1")
	for i := range 10 {
		theirs("add", "/metadata/finalizers/-", fmt.Sprintf("example.com/%d", i))
	}
	w.awaitAttached(ctx, t, "ep1217-a")
	if f := w.pv(ctx, t, "ep1217").Finalizers; len(f) != 12 || !slices.Contains(f, finalizer) {
		t.Errorf("finalizers %v, want all of theirs, ours and Kubernetes'", f)
	}
	if err := pvs.Delete(ctx, "ep1217", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.remove(ctx, t, "ep1217-a")
	for range 10 {
		f := w.pv(ctx, t, "ep1217").Finalizers
		for i, name := range f {
			if strings.HasPrefix(name, "example.com/") {
				// Where ours went meanwhile, the next one is at its place.
				body := fmt.Sprintf(`[{"op":"test","path":"/metadata/finalizers/%d","value":%q},{"op":"remove","path":"/metadata/finalizers/%d"}]`, i, name, i)
				_, _ = pvs.Patch(ctx, "ep1217", types.JSONPatchType, []byte(body), metav1.PatchOptions{})
				break
			}
		}
	}
	w.gone(ctx, t, "ep1217-a")
	w.await(ctx, t, "ours is off", func() bool {
		pv := w.pv(ctx, t, "ep1217")
		return pv == nil || !slices.Contains(pv.Finalizers, finalizer)
	})
	if w.pv(ctx, t, "ep1217") != nil {
		w.strip(ctx, t, "pv", "ep1217")
	}
}

// Two PersistentVolumes name one volume: one publication serves both, and is
// undone with the last of them.
func TestKK141541_TwoPersistentVolumesOfOneVolume(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "kk141541")
	w.volume(ctx, t, "kk141541-twin", func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = handle("kk141541") })
	w.attached(ctx, t, "kk141541-a", "kk141541", "node-1")
	w.attached(ctx, t, "kk141541-b", "kk141541-twin", "node-1")
	w.remove(ctx, t, "kk141541-a")
	w.gone(ctx, t, "kk141541-a")
	if on := w.published(ctx, t, handle("kk141541")); len(on) != 1 {
		t.Errorf("published to %v while the second one is attached", on)
	}
	w.remove(ctx, t, "kk141541-b")
	w.gone(ctx, t, "kk141541-b")
	w.wire.wantStory(t, handle("kk141541"), "publish node-1, unpublish node-1")
}

// A publish that timed out may have worked: no other node gets the volume before
// that one is undone.
func TestKK124334_TimedOutPublishKeepsOthersAway(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "kk124334")
	id, clear := w.inject(ctx, t, simctl.Fault{Method: publish, Volume: handle("kk124334"), Node: "node-1", Effect: true, Code: codes.DeadlineExceeded})
	w.attachment(ctx, t, "kk124334-a", "kk124334", "node-1")
	w.hits(ctx, t, id, 2)
	w.attachment(ctx, t, "kk124334-b", "kk124334", "node-2")
	w.await(ctx, t, "the second one says that it waits", func() bool { return len(w.Events("kk124334-b", attach.ReasonWaitingForDetach)) == 1 })
	w.remove(ctx, t, "kk124334-a")
	w.gone(ctx, t, "kk124334-a")
	clear()
	w.awaitAttached(ctx, t, "kk124334-b")
	if story := w.wire.story(handle("kk124334")); !strings.HasSuffix(story, "publish node-1, unpublish node-1, publish node-2") {
		t.Errorf("calls: %s", story)
	}
}

// A node that is gone, Node and CSINode, is detached by the ID that was recorded,
// when its VolumeAttachment is deleted and not before; the status never tells less.
func TestEA83_EA215_NodeGone(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "ea83")
	w.ghost(t, "ghost")
	w.attached(ctx, t, "ea83-a", "ea83", "ghost")
	if err := w.Client.CoreV1().Nodes().Delete(ctx, "ghost", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, "the CSINode is gone with it", func() bool {
		_, err := w.Client.StorageV1().CSINodes().Get(ctx, "ghost", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	w.lists(ctx, t, 3)
	w.wire.wantStory(t, handle("ea83"), "publish ghost-id")
	w.remove(ctx, t, "ea83-a")
	w.gone(ctx, t, "ea83-a")
	w.wire.wantStory(t, handle("ea83"), "publish ghost-id, unpublish ghost-id")
	for _, ch := range w.Observer.Changes() {
		was, _ := ch.Old.(*storagev1.VolumeAttachment)
		is, ok := ch.New.(*storagev1.VolumeAttachment)
		if ok && was != nil && is.Name == "ea83-a" && was.Status.Attached && !is.Status.Attached {
			t.Error("the status said that it is not attached while it was")
		}
	}
}

// ghost makes a Node and a CSINode that no kubelet is behind.
func (w *world) ghost(t *testing.T, name string) {
	t.Helper()
	ctx := bounded(t)
	store, err := state.New(state.Config{Dir: w.StateDir()})
	if err == nil {
		err = store.Register(ctx, name+"-id")
	}
	if err != nil {
		t.Fatal(err)
	}
	node, err := w.Client.CoreV1().Nodes().Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// It is collected with its Node, as the kubelet has it.
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: name, UID: node.UID}
	if _, err := w.Client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{owner}},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: rig.Driver, NodeID: name + "-id"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func(ctx context.Context) { _ = w.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}) })
}
