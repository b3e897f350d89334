package attach

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// What cannot be attached says why, in its status and by an event, makes no call
// and no further write, and goes when it is deleted.
func TestBadInput_WhatCannotBeAttached(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	foreign := func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other.csi.example.com" }
	local := func(pv *v1.PersistentVolume) {
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/none"}}
	}
	mixed := func(pv *v1.PersistentVolume) {
		pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadOnlyMany, v1.ReadWriteOnce}
	}
	secret := func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: rig.Namespace, Name: "bad-none"}
	}
	for name, c := range map[string]struct {
		// volume is nil where there is no PersistentVolume.
		volume func(*v1.PersistentVolume)
		node   string
		want   string
		// retried: it may mend itself, so that it is looked at again.
		retried bool
	}{
		"bad-missing": {nil, "node-1", "PersistentVolume bad-missing does not exist", false},
		"bad-foreign": {foreign, "node-1", "belongs to driver other.csi.example.com, not " + rig.Driver, false},
		"bad-local":   {local, "node-1", "is not a CSI volume", false},
		"bad-modes":   {mixed, "node-1", "access modes of PersistentVolume bad-modes", true},
		"bad-secret":  {secret, "node-1", "the secret does not exist: make default/bad-none", true},
		"bad-node":    {func(*v1.PersistentVolume) {}, "bad-nowhere", "CSINode bad-nowhere does not exist", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t)
			if c.volume != nil {
				w.volume(ctx, t, name, c.volume)
			}
			w.attachment(ctx, t, name, name, c.node)
			w.await(ctx, t, "the status says why", func() bool { return says(w.status(name).AttachError, c.want) })
			w.lists(ctx, t, 3)
			w.await(ctx, t, "one event says why", func() bool { return len(w.Events(name, attach.ReasonAttachFailed)) == 1 })
			if n := w.writes(t, "volumeattachments", name); n != 1 {
				t.Errorf("%d writes of its status, want 1", n)
			}
			if va := w.AttachmentNamed(name); va == nil || len(va.Finalizers) > 0 {
				t.Errorf("%v: want it without finalizers, as it was never published", va)
			}
			w.wire.wantStory(t, handle(name), "")
			w.remove(ctx, t, name)
			w.gone(ctx, t, name)
		})
	}
}

// A VolumeAttachment of another attacher is nobody's business here, even if it
// names a volume of ours.
func TestBadInput_AnotherAttacher(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "theirs")
	w.attachment(ctx, t, "theirs", "theirs", "node-1", func(va *storagev1.VolumeAttachment) { va.Spec.Attacher = "other.csi.example.com" })
	w.lists(ctx, t, 2)
	if n := w.writes(t, "volumeattachments", "theirs"); n != 0 {
		t.Errorf("%d writes", n)
	}
	w.wire.wantStory(t, handle("theirs"), "")
}

// What the API server refuses never gets to us: a source that is both or neither,
// and a volume without a handle.
func TestBadInput_RefusedByTheServer(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	name := "refused"
	inline := &v1.PersistentVolumeSpec{
		AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: rig.Driver, VolumeHandle: "x"}},
	}
	for what, source := range map[string]storagev1.VolumeAttachmentSource{
		"neither": {}, "both": {PersistentVolumeName: &name, InlineVolumeSpec: inline},
	} {
		_, err := w.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: rig.Driver, NodeName: "node-1", Source: source},
		}, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want it refused", what, err)
		}
	}
	_, err := w.Client.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: inline.AccessModes, Capacity: v1.ResourceList{v1.ResourceStorage: *capacity()},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: rig.Driver}},
		},
	}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "volumeHandle") {
		t.Errorf("a PersistentVolume without a handle: %v, want it refused", err)
	}
}

// A volume that is written into the VolumeAttachment has no PersistentVolume.
func TestInlineVolume(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	if _, err := w.Driver.CreateVolume(ctx, "inline", 1<<20); err != nil {
		t.Fatal(err)
	}
	w.attachment(ctx, t, "inline", "", "node-1", func(va *storagev1.VolumeAttachment) {
		va.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{
			AccessModes:            []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: rig.Driver, VolumeHandle: handle("inline")}},
		}}
	})
	w.awaitAttached(ctx, t, "inline")
	w.remove(ctx, t, "inline")
	w.gone(ctx, t, "inline")
	w.wire.wantStory(t, handle("inline"), "publish node-1, unpublish node-1")
}

// Whatever a driver says, the status shows it, in the 1024 bytes that the server
// takes, with its code, and the events can be written.
func TestBadInput_DriverMessages(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	for name, message := range map[string]string{
		"says-long":     strings.Repeat("10 KiB of words. ", 10<<10/17),
		"says-bytes":    "bytes \xff\xfe\x80 that are no text",
		"says-both":     strings.Repeat("é\xff", 5<<10),
		"says-controls": "a\x00b\x1b[31mc\r\nd\u2028e",
		"says-nothing":  "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t)
			w.volume(ctx, t, name)
			w.attachment(ctx, t, name+"-ok", name, "node-1")
			w.awaitAttached(ctx, t, name+"-ok")
			undo := w.wire.change(t.Name(), func(a *answer) {
				if a.Volume == handle(name) {
					a.Code, a.Message = codes.ResourceExhausted, message
				}
			})
			t.Cleanup(undo)
			w.remove(ctx, t, name+"-ok")
			w.await(ctx, t, "detachError says it", func() bool { return saidWell(w.status(name+"-ok").DetachError, message) })
			w.volume(ctx, t, name+"-two")
			undoTwo := w.wire.change(t.Name()+"2", func(a *answer) {
				if a.Volume == handle(name+"-two") && a.Method == publish {
					a.Code, a.Message = codes.ResourceExhausted, message
				}
			})
			t.Cleanup(undoTwo)
			w.attachment(ctx, t, name+"-no", name+"-two", "node-2")
			w.await(ctx, t, "attachError says it", func() bool { return saidWell(w.status(name+"-no").AttachError, message) })
			w.await(ctx, t, "events say it", func() bool {
				return len(w.Events(name+"-no", attach.ReasonAttachFailed)) == 1 && len(w.Events(name+"-ok", attach.ReasonDetachFailed)) == 1
			})
			w.await(ctx, t, "it has failed four times", func() bool { return len(w.wire.of(unpublish, handle(name))) >= 4 })
			wantBackoff(t, w.wire.of(unpublish, handle(name)))
			if n := w.writes(t, "volumeattachments", name+"-ok"); n != 3 {
				t.Errorf("%d writes, want 3: intent, commit and one error", n)
			}
			undo()
			undoTwo()
			w.gone(ctx, t, name+"-ok")
		})
	}
}

// saidWell reports whether an error of the status says the beginning of the
// message, with the code.
func saidWell(e *storagev1.VolumeError, message string) bool {
	if e == nil || e.ErrorCode == nil || codes.Code(*e.ErrorCode) != codes.ResourceExhausted {
		return false
	}
	begin, _, _ := strings.Cut(strings.ToValidUTF8(message, "\xff"), "\xff")
	return len(e.Message) <= 1024 && utf8.ValidString(e.Message) && strings.Contains(e.Message, firstWord(begin))
}

func firstWord(s string) string {
	if len(s) > 10 {
		s = s[:10]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, strings.SplitN(s, "\x00", 2)[0])
}

// A publish context that the server does not take: the volume is published, so
// that the driver is not asked again, and the status says why nobody may use it.
func TestBadInput_PublishContextTooLarge(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	for name, c := range map[string]struct {
		size int
		want string
	}{
		"context-fits":  {200 << 10, ""},
		"context-large": {300 << 10, "the volume is attached, but writing so failed"},
		"context-huge":  {4 << 20, "the volume is attached, but writing so failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t)
			w.volume(ctx, t, name)
			undo := w.wire.change(t.Name(), func(a *answer) {
				if a.Method == publish && a.Volume == handle(name) && a.Code == codes.OK {
					edit(a, &csi.ControllerPublishVolumeResponse{}, func(m *csi.ControllerPublishVolumeResponse) {
						m.PublishContext = map[string]string{"much": strings.Repeat("x", c.size)}
					})
				}
			})
			t.Cleanup(undo)
			w.attachment(ctx, t, name, name, "node-1")
			if c.want == "" {
				va := w.awaitAttached(ctx, t, name)
				if len(va.Status.AttachmentMetadata["much"]) != c.size {
					t.Error("the publish context was cut")
				}
			} else {
				w.await(ctx, t, "the status says why it is of no use", func() bool { return says(w.status(name).AttachError, c.want) })
				before := w.writes(t, "volumeattachments", name)
				w.lists(ctx, t, 3)
				if n := w.writes(t, "volumeattachments", name) - before; n > 5 {
					t.Errorf("%d writes in the time of three comparisons", n)
				}
			}
			w.remove(ctx, t, name)
			w.gone(ctx, t, name)
			w.wire.wantStory(t, handle(name), "publish node-1, unpublish node-1")
		})
	}
}

// The secret that the volume names is gone when it is to be detached. That is
// said, nothing is let go, and it goes on when the secret is there again.
func TestRook16956_SecretGoneAtDetach(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	secrets := w.Client.CoreV1().Secrets(rig.Namespace)
	make := func(ctx context.Context) {
		if _, err := secrets.Create(ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "rook16956"}, StringData: map[string]string{"key": "hunter2"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	make(ctx)
	w.volume(ctx, t, "rook16956", func(pv *v1.PersistentVolume) {
		pv.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: rig.Namespace, Name: "rook16956"}
	})
	w.attached(ctx, t, "rook16956", "rook16956", "node-1")
	if err := secrets.Delete(ctx, "rook16956", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.remove(ctx, t, "rook16956")
	w.await(ctx, t, "the status says why", func() bool { return says(w.status("rook16956").DetachError, "make default/rook16956") })
	w.lists(ctx, t, 2)
	w.wire.wantStory(t, handle("rook16956"), "publish node-1")
	began := time.Now()
	make(ctx)
	w.gone(ctx, t, "rook16956")
	t.Logf("detached %v after the secret was there again", time.Since(began))
	w.wire.wantStory(t, handle("rook16956"), "publish node-1, unpublish node-1")
	if log := w.LogOf("ha-sidecar-1"); strings.Contains(log, "hunter2") {
		t.Error("the secret is in the log")
	}
}
