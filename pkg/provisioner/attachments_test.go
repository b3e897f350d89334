package provisioner

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func attachment(source storagev1.VolumeAttachmentSource) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-1", UID: "uid-va-1"},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: ourName, NodeName: "node-1", Source: source},
	}
}

func ofPV(name string) storagev1.VolumeAttachmentSource {
	return storagev1.VolumeAttachmentSource{PersistentVolumeName: &name}
}

func inline(driver, handle string) storagev1.VolumeAttachmentSource {
	return storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}},
	}}
}

// TestAttachedVolumeIsNotDeleted (external-provisioner 176): the deletion waits
// for the VolumeAttachment, tells why once, and is done at once when it has gone.
func TestAttachedVolumeIsNotDeleted(t *testing.T) {
	other := twin(v1.VolumeReleased, del)
	for name, c := range map[string]struct {
		attachment *storagev1.VolumeAttachment
		pv         *v1.PersistentVolume
		waits      bool
		twin       bool
	}{
		"its own": {attachment: attachment(ofPV("volume-1")), waits: true},
		"of another PersistentVolume of its volume": {attachment: attachment(ofPV("volume-2")), waits: true, twin: true},
		"inline":                                {attachment: attachment(inline(ourName, "h")), waits: true},
		"of a PersistentVolume that is not CSI": {attachment: attachment(ofPV("volume-1")), waits: true, pv: pv("volume-1", v1.VolumeReleased, del, ourName)},
		"of another volume":                     {attachment: attachment(ofPV("volume-3"))},
		"inline, of another driver":             {attachment: attachment(inline(otherName, "h"))},
		"of nothing":                            {attachment: attachment(storagev1.VolumeAttachmentSource{})},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				mine := c.pv
				if mine == nil {
					mine = released()
				}
				objects := []runtime.Object{mine, c.attachment}
				if c.twin {
					objects = append(objects, other)
				}
				w := newWorld(t, setup{objects: objects, noResync: true, options: []Option{WithVolumeAttachments(nil)}})
				w.rest(5)
				_, removed := w.maker.calls()
				events := w.told()
				if (removed == 0) != c.waits {
					t.Errorf("deleted %d times", removed)
				}
				if !c.waits {
					return
				}
				want := "Normal VolumeDelete The volume is deleted once it is detached: VolumeAttachment va-1 attaches it to node node-1"
				if len(slices.Compact(events)) != 1 || len(events) != len(objects)-1 || events[0] != want {
					t.Errorf("events: %q, want %q", events, want)
				}
				w.api.dropAttachment("va-1")
				w.rest(1)
				if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
					t.Errorf("detached: deleted %d times", removed)
				}
				nothingRemembered(t, w)
			})
		})
	}
}

// TestHeldVolumeIsNotDeleted: what may still be attached, though its
// VolumeAttachment has gone, holds the deletion as well.
func TestHeldVolumeIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		held := true
		w := newWorld(t, setup{objects: []runtime.Object{released()}, noResync: true, options: []Option{WithVolumeAttachments(func(h volume.Handle) bool {
			mu.Lock()
			defer mu.Unlock()
			return held && h == "h"
		})}})
		w.ctrl.Released("h") // too early to matter
		w.rest(5)
		if events := w.told(); len(events) != 1 || !strings.Contains(events[0], "it is not certain that it is detached from all nodes") {
			t.Errorf("events: %q", events)
		}
		w.ctrl.Released("another")
		w.ctrl.Released("h")
		w.rest(1)
		if _, removed := w.maker.calls(); removed != 0 {
			t.Error("deleted while it is held")
		}
		mu.Lock()
		held = false
		mu.Unlock()
		w.ctrl.Released("h")
		w.rest(1)
		if _, removed := w.maker.calls(); removed != 1 {
			t.Errorf("deleted %d times once it is not held", removed)
		}
	})
}

// TestWithoutGuardAttachmentsAreNotWatched: a driver that attaches nothing has no
// right to list them.
func TestWithoutGuardAttachmentsAreNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released()}})
		w.rest(2)
		for _, a := range w.client.Actions() {
			if a.GetResource().Resource == "volumeattachments" {
				t.Errorf("%s of volumeattachments", a.GetVerb())
			}
		}
		if len(w.pvs()) != 0 {
			t.Error("not deleted")
		}
	})
}
