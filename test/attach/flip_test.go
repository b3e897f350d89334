package attach

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// A driver gives up ControllerPublishVolume, and its CSIDriver attachRequired.
// What the older setup left, finalizers on VolumeAttachments and PersistentVolumes,
// is drained, without a call. Once the driver takes it up again, what was only
// marked as attached is published.
func TestKK129572_AttachRequiredFlips(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.volume(ctx, t, "kk129572-old")
	w.volume(ctx, t, "kk129572-new")
	w.attached(ctx, t, "kk129572-old", "kk129572-old", "node-1")
	if f := w.pv(ctx, t, "kk129572-old").Finalizers; !slices.Contains(f, finalizer) {
		t.Fatalf("finalizers %v", f)
	}
	undo := w.wire.change(t.Name(), func(a *answer) {
		if a.Method == "ControllerGetCapabilities" {
			edit(a, &csi.ControllerGetCapabilitiesResponse{}, withoutPublish)
		}
	})
	t.Cleanup(undo)
	w.attachRequired(ctx, t, false)
	cleanup(t, func(ctx context.Context) { w.attachRequired(ctx, t, true) })
	w.restarts(t)

	w.remove(ctx, t, "kk129572-old")
	w.gone(ctx, t, "kk129572-old")
	if err := w.Client.CoreV1().PersistentVolumes().Delete(ctx, "kk129572-old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, "the PersistentVolume is gone", func() bool { return w.pv(ctx, t, "kk129572-old") == nil })
	if va := w.attached(ctx, t, "kk129572-new", "kk129572-new", "node-1"); len(va.Finalizers) > 0 {
		t.Errorf("finalizers %v on what needs no detach", va.Finalizers)
	}
	w.wire.wantStory(t, handle("kk129572-old"), "publish node-1")
	w.wire.wantStory(t, handle("kk129572-new"), "")
	w.unpublishDirectly(ctx, t, "kk129572-old", "node-1") // which that driver would not need

	undo()
	w.attachRequired(ctx, t, true)
	if _, err := w.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, "it is published", func() bool { return len(w.published(ctx, t, handle("kk129572-new"))) == 1 })
	w.await(ctx, t, "it has an intent", func() bool {
		va := w.AttachmentNamed("kk129572-new")
		return va != nil && slices.Contains(va.Finalizers, finalizer)
	})
	w.remove(ctx, t, "kk129572-new")
	w.gone(ctx, t, "kk129572-new")
	w.wire.wantStory(t, handle("kk129572-new"), "publish node-1, unpublish node-1")
}

func withoutPublish(m *csi.ControllerGetCapabilitiesResponse) {
	m.Capabilities = slices.DeleteFunc(m.Capabilities, func(c *csi.ControllerServiceCapability) bool {
		return c.GetRpc().GetType() == csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	})
}

// attachRequired makes the CSIDriver anew, since the field cannot be changed.
func (w *world) attachRequired(ctx context.Context, t *testing.T, required bool) {
	t.Helper()
	drivers := w.Client.StorageV1().CSIDrivers()
	old, err := drivers.Get(ctx, rig.Driver, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := drivers.Delete(ctx, rig.Driver, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	made := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: old.Name, Labels: old.Labels}, Spec: old.Spec}
	made.Spec.AttachRequired = &required
	if _, err := drivers.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
