package attach

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// What external-attacher's own unit tests hold, in so far as no other test here
// does: in one table for attach, one for detach, and one for PersistentVolumes.
// By name, those that others cover: inline volumes TestInlineVolume, secrets
// TestPublishRequest, a missing one TestRook16956, a migrated volume TestEA217, bad
// sources TestUnusableAttachments and TestSourcesThatAreNone, a missing CSINode
// TestEA102, an attach that fails or times out TestRefusedNodeKeepsNobodyAway and
// TestEA337, a detach that does TestEA164, a commit that fails
// TestCommitIsRetriedWithoutACall, what is attached already TestRestartAtRest, a
// PersistentVolume that is gone TestEA235, a node that is gone TestEA83, the codes
// of errors TestOutcomes, and comparing with the driver's list compare_test.go.
type parity struct {
	objs   []runtime.Object
	config func(*Config)
	do     func(t *testing.T, r *rig)
}

func runParity(t *testing.T, cases map[string]parity) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(newFakeDriver("h-a"), c.objs...)
				r.config = c.config
				r.run(t, func(t *testing.T) { c.do(t, r) })
			})
		})
	}
}

// failing makes the first patches of the kind fail before they are done.
func (r *rig) failing(resource, subresource string, times int) {
	r.api.setFault(func(res, sub string) (error, error) {
		if res == resource && sub == subresource && times > 0 {
			times--
			return errAborted, nil
		}
		return nil, nil
	})
}

func (r *rig) attach(t *testing.T, name, pv, node string) {
	t.Helper()
	r.api.add(va(name, pv, node))
	r.settle(time.Second)
	wantAttached(t, r, name, true)
}

func readOnly(p *v1.PersistentVolume) *v1.PersistentVolume {
	p.Spec.CSI.ReadOnly = true
	return p
}

func withCapabilities(caps Capabilities) func(*Config) {
	return func(cfg *Config) { cfg.Capabilities = func() Capabilities { return caps } }
}

func emptySecret(p *v1.PersistentVolume) []runtime.Object {
	p.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "s"}
	return []runtime.Object{p, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}}
}

func TestParityAttach(t *testing.T) {
	deleting := rwo("a")
	deleting.Finalizers, deleting.DeletionTimestamp = []string{"example.com/keeps"}, &metav1.Time{Time: time.Now()}
	without := csiNode("n1", "id-n1")
	without.Spec.Drivers[0].Name = "other.csi.example.com"
	runParity(t, map[string]parity{
		"read-only where the driver can": {objects(readOnly(rwo("a")), node("n1")), withCapabilities(Capabilities{PublishReadOnly: true}), func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			if !r.driver.requests[0].Readonly {
				t.Error("published for writing")
			}
		}},
		"read-only where the driver cannot": {objects(readOnly(rwo("a")), node("n1")), nil, func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			if r.driver.requests[0].Readonly {
				t.Error("the driver was asked for what it has no capability for")
			}
		}},
		"read-only and written into the attachment": {objects(node("n1"), &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}), withCapabilities(Capabilities{PublishReadOnly: true}), func(t *testing.T, r *rig) {
			a := inlineVA("va", "h-a", "n1")
			a.Spec.Source.InlineVolumeSpec.CSI.ReadOnly = true
			a.Spec.Source.InlineVolumeSpec.CSI.VolumeAttributes = map[string]string{"pool": "fast"}
			r.api.add(a)
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
			if q := r.driver.requests[0]; !q.Readonly || q.VolumeContext["pool"] != "fast" || len(q.Secrets) != 0 {
				t.Errorf("request %v", q)
			}
		}},
		"an empty secret": {objects(emptySecret(rwo("a")), node("n1")), nil, func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			if len(r.driver.secrets[0])+len(r.driver.secrets[1]) != 0 {
				t.Errorf("secrets %v", r.driver.secrets)
			}
		}},
		"a volume that is being deleted": {objects(deleting, node("n1"), va("va", "a", "n1")), nil, func(t *testing.T, r *rig) {
			r.settle(time.Minute)
			a := wantAttached(t, r, "va", false)
			if e := a.Status.AttachError; e == nil || !strings.Contains(e.Message, "is being deleted") || e.ErrorCode != nil {
				t.Errorf("attachError %v", e)
			}
			if len(a.Finalizers) > 0 || slices.Contains(r.api.pv("a").Finalizers, finalizer) {
				t.Error("finalizers were written")
			}
			wantCalls(t, r, "")
		}},
		"a node without the driver": {objects(rwo("a"), without, va("va", "a", "n1")), nil, func(t *testing.T, r *rig) {
			r.settle(time.Minute)
			if e := wantAttached(t, r, "va", false).Status.AttachError; e == nil || !strings.Contains(e.Message, "no node ID for driver") {
				t.Errorf("attachError %v", e)
			}
		}},
		"the volume's finalizer cannot be written at first": {objects(rwo("a"), node("n1")), nil, func(t *testing.T, r *rig) {
			r.failing("persistentvolumes", "", 2)
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second / 2)
			wantCalls(t, r, "")
			r.settle(10 * time.Second)
			wantAttached(t, r, "va", true)
			wantCalls(t, r, "publish h-a id-n1")
		}},
		"the intent cannot be written at first": {objects(rwo("a"), node("n1")), nil, func(t *testing.T, r *rig) {
			r.failing("volumeattachments", "", 2)
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second / 2)
			wantCalls(t, r, "")
			r.settle(10 * time.Second)
			wantAttached(t, r, "va", true)
			wantCalls(t, r, "publish h-a id-n1")
		}},
		"the error about an unknown volume cannot be written at first": {objects(node("n1")), nil, func(t *testing.T, r *rig) {
			r.failing("volumeattachments", "status", 2)
			r.api.add(va("va", "none", "n1"))
			r.settle(time.Minute)
			if e := wantAttached(t, r, "va", false).Status.AttachError; e == nil || !strings.Contains(e.Message, "none does not exist") {
				t.Errorf("attachError %v", e)
			}
			if n := r.api.patched("volumeattachments/status"); n != 1 {
				t.Errorf("written %d times", n)
			}
		}},
		"another driver's": {objects(rwo("a"), node("n1")), nil, func(t *testing.T, r *rig) {
			a := va("va", "a", "n1")
			a.Spec.Attacher = "other.csi.example.com"
			r.api.add(a)
			r.settle(time.Minute)
			wantCalls(t, r, "")
		}},
		"metadata of others": {objects(rwo("a"), node("n1")), nil, func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			writes := r.api.patched("volumeattachments/") + r.api.patched("volumeattachments/status")
			for _, change := range []func(*storagev1.VolumeAttachment){
				func(a *storagev1.VolumeAttachment) { a.Labels = map[string]string{"a": "b"} },
				func(a *storagev1.VolumeAttachment) { a.Annotations["a"] = "b" },
				func(a *storagev1.VolumeAttachment) { a.Finalizers = append(a.Finalizers, "example.com/keeps") },
				func(a *storagev1.VolumeAttachment) { a.Status.DetachError = &storagev1.VolumeError{Message: "old"} },
				func(a *storagev1.VolumeAttachment) { a.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "x"}} },
			} {
				r.api.change(vaResource, "va", func(o runtime.Object) { change(o.(*storagev1.VolumeAttachment)) })
				r.settle(time.Minute)
			}
			wantCalls(t, r, "publish h-a id-n1")
			if n := r.api.patched("volumeattachments/") + r.api.patched("volumeattachments/status"); n != writes {
				t.Errorf("%d writes in answer", n-writes)
			}
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			a := wantAttached(t, r, "va", false)
			if !slices.Equal(a.Finalizers, []string{"example.com/keeps"}) || a.Status.DetachError != nil || len(a.Status.AttachmentMetadata) > 0 {
				t.Errorf("detached, and it says %v %v", a.Finalizers, a.Status)
			}
		}},
	})
}

func TestParityDetach(t *testing.T) {
	leaving := func(change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
		a := published("va", "a", "n1", true)
		a.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		change(a)
		return a
	}
	runParity(t, map[string]parity{
		"detached already": {objects(rwo("a"), node("n1"), leaving(func(a *storagev1.VolumeAttachment) { a.Finalizers = []string{"example.com/keeps"} })), nil, func(t *testing.T, r *rig) {
			r.settle(time.Minute)
			wantCalls(t, r, "")
			if n := r.api.patched("volumeattachments/") + r.api.patched("volumeattachments/status"); n != 0 {
				t.Errorf("%d writes", n)
			}
		}},
		"by the annotation, though the node has another ID now": {objects(rwo("a"), csiNode("n1", "id-new"), leaving(func(*storagev1.VolumeAttachment) {})), nil, func(t *testing.T, r *rig) {
			r.settle(time.Minute)
			wantGone(t, r, "va")
			wantCalls(t, r, "unpublish h-a id-n1")
		}},
		"without annotation, by the node": {objects(rwo("a"), csiNode("n1", "id-now"), leaving(func(a *storagev1.VolumeAttachment) { a.Annotations = nil })), nil, func(t *testing.T, r *rig) {
			r.settle(time.Minute)
			wantGone(t, r, "va")
			wantCalls(t, r, "unpublish h-a id-now")
		}},
		"without annotation and node": {objects(rwo("a"), leaving(func(a *storagev1.VolumeAttachment) { a.Annotations = nil })), nil, func(t *testing.T, r *rig) {
			r.settle(time.Hour)
			if e := wantAttached(t, r, "va", true).Status.DetachError; e == nil || !strings.Contains(e.Message, "not recorded") {
				t.Errorf("detachError %v", e)
			}
			wantCalls(t, r, "")
			r.api.add(csiNode("n1", "id-now"))
			r.settle(time.Second)
			wantGone(t, r, "va")
		}},
		"a source that is none": {objects(node("n1"), leaving(func(a *storagev1.VolumeAttachment) { a.Spec.Source = storagev1.VolumeAttachmentSource{} })), nil, func(t *testing.T, r *rig) {
			r.settle(time.Hour)
			if e := wantAttached(t, r, "va", true).Status.DetachError; e == nil || !strings.Contains(e.Message, "exactly one") {
				t.Errorf("detachError %v", e)
			}
			wantCalls(t, r, "")
		}},
		"the error about an unknown volume cannot be written at first": {objects(node("n1"), leaving(func(*storagev1.VolumeAttachment) {})), nil, func(t *testing.T, r *rig) {
			r.failing("volumeattachments", "status", 2)
			r.settle(time.Hour)
			if e := wantAttached(t, r, "va", true).Status.DetachError; e == nil || !strings.Contains(e.Message, "a does not exist") {
				t.Errorf("detachError %v", e)
			}
		}},
		"the finalizer cannot be removed at first": {objects(rwo("a"), node("n1")), nil, func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			r.failing("volumeattachments", "", 3)
			r.api.remove(vaResource, "va")
			r.settle(time.Minute)
			wantGone(t, r, "va")
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
		}},
		"times out": {objects(rwo("a"), node("n1")), nil, func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			r.driver.set(behaviour{err: errTimeout})
			r.api.remove(vaResource, "va")
			r.settle(10 * time.Second)
			if a := wantAttached(t, r, "va", true); a.Status.DetachError == nil || !slices.Contains(a.Finalizers, finalizer) {
				t.Errorf("%v %v", a.Finalizers, a.Status)
			}
			r.driver.set(healthy)
			r.settle(time.Minute)
			wantGone(t, r, "va")
		}},
		"trivial: another driver's, and a write that fails": {objects(va("va", "a", "n1")), func(cfg *Config) { cfg.Trivial, cfg.Driver = true, nil }, func(t *testing.T, r *rig) {
			r.failing("volumeattachments", "status", 2)
			other := va("other", "a", "n1")
			other.Spec.Attacher = "other.csi.example.com"
			r.api.add(other)
			r.api.add(va("late", "a", "n1"))
			r.settle(time.Minute)
			wantAttached(t, r, "va", true)
			wantAttached(t, r, "late", true)
			wantAttached(t, r, "other", false)
		}},
	})
}

func TestParityAccessModes(t *testing.T) {
	const rwx, rox, once, oncePod = v1.ReadWriteMany, v1.ReadOnlyMany, v1.ReadWriteOnce, v1.ReadWriteOncePod
	type modes = []v1.PersistentVolumeAccessMode
	const none = csi.VolumeCapability_AccessMode_UNKNOWN
	for _, c := range []struct {
		modes modes
		// plain is what a driver is asked for, finer one with SINGLE_NODE_MULTI_WRITER.
		plain, finer csi.VolumeCapability_AccessMode_Mode
	}{
		{modes{rwx}, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		{modes{rox}, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		{modes{once}, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		{modes{oncePod}, csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		{modes{rwx, rox, once}, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		{modes{rox, once}, none, none},
		{modes{rox, oncePod}, none, none},
		{modes{once, oncePod}, none, none},
		{nil, none, none},
	} {
		for finer, want := range map[bool]csi.VolumeCapability_AccessMode_Mode{false: c.plain, true: c.finer} {
			got, err := volumeCapability(pv("a", c.modes...), "", finer)
			if (err != nil) != (want == none) || got.GetAccessMode().GetMode() != want {
				t.Errorf("%v, finer %v: %v, %v; want %v", c.modes, finer, got, err, want)
			}
		}
	}
	p := rwo("a")
	for want, change := range map[string]func(){
		"ext4": func() {}, "xfs": func() { p.Spec.CSI.FSType = "xfs" },
	} {
		p.Spec.CSI.FSType = ""
		change()
		got, err := volumeCapability(p, "ext4", false)
		if err != nil || got.GetMount().GetFsType() != want {
			t.Errorf("fsType %v, %v; want %s", got, err, want)
		}
	}
	block := v1.PersistentVolumeBlock
	p.Spec.VolumeMode = &block
	if got, err := volumeCapability(p, "ext4", false); err != nil || got.GetBlock() == nil {
		t.Errorf("a block volume: %v, %v", got, err)
	}
}

func TestParityFinalizers(t *testing.T) {
	for driver, want := range map[string]string{
		"csi.example.com": "external-attacher/csi-example-com", "UPPER_case.1": "external-attacher/UPPER-case-1",
		"ends.with.dot.": "external-attacher/ends-with-dot-X", "plain": "external-attacher/plain",
	} {
		if got := FinalizerName(driver); got != want {
			t.Errorf("FinalizerName(%s) = %s, want %s", driver, got, want)
		}
	}
	ours := func(more ...string) *v1.PersistentVolume {
		p := rwo("a")
		p.Finalizers = append(more, finalizer, "example.com/last")
		return p
	}
	foreign := ours()
	foreign.Spec.CSI.Driver, foreign.Finalizers = "other.csi.example.com", []string{"external-attacher/other-csi-example-com"}
	remove := func(r *rig) { r.api.remove(pvResource, "a"); r.settle(time.Second) }
	want := func(t *testing.T, r *rig, finalizers ...string) {
		t.Helper()
		if p := r.api.pv("a"); p == nil || !slices.Equal(p.Finalizers, finalizers) {
			t.Errorf("PersistentVolume %v, want it with %v", p, finalizers)
		}
	}
	runParity(t, map[string]parity{
		"deleted, used by nobody": {objects(ours("example.com/first")), nil, func(t *testing.T, r *rig) {
			remove(r)
			want(t, r, "example.com/first", "example.com/last")
		}},
		"deleted before we came": {objects(ours()), nil, func(t *testing.T, r *rig) {
			r.stop()
			remove(r)
			r.start()
			want(t, r, "example.com/last")
		}},
		"not deleted": {objects(ours(), node("n1")), nil, func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			r.api.remove(vaResource, "va")
			r.settle(time.Minute)
			want(t, r, finalizer, "example.com/last")
		}},
		"deleted, in use": {objects(ours(), node("n1")), nil, func(t *testing.T, r *rig) {
			r.attach(t, "va", "a", "n1")
			remove(r)
			r.settle(time.Hour)
			want(t, r, finalizer, "example.com/last")
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			want(t, r, "example.com/last")
		}},
		"the write fails at first": {objects(ours()), nil, func(t *testing.T, r *rig) {
			r.failing("persistentvolumes", "", 3)
			remove(r)
			want(t, r, finalizer, "example.com/last")
			r.settle(time.Minute)
			want(t, r, "example.com/last")
		}},
		"of another driver": {objects(foreign), nil, func(t *testing.T, r *rig) {
			remove(r)
			want(t, r, "external-attacher/other-csi-example-com")
		}},
	})
}

// A volume of an in-tree plugin that is not migrated any more is let go, once
// nobody uses it by CSI.
func TestParityMigrationIsRolledBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := migrated(newFakeDriver(), gcePV("pv"))
		r.run(t, func(t *testing.T) {
			a := va("va", "pv", "n1")
			a.Spec.Attacher = gceDriver
			r.api.add(a)
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
			back := func(o runtime.Object) { o.(*v1.PersistentVolume).Annotations = map[string]string{"other": "thing"} }
			r.api.change(pvResource, "pv", back)
			r.settle(time.Minute)
			if f := r.api.pv("pv").Finalizers; !slices.Contains(f, FinalizerName(gceDriver)) {
				t.Errorf("finalizers %v while it is attached", f)
			}
			if a := r.api.va("va"); a.Annotations[volume.AnnotationNodeID] == "" {
				t.Error("no intent")
			}
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			if f := r.api.pv("pv").Finalizers; len(f) != 0 {
				t.Errorf("finalizers %v after the way back to the in-tree plugin", f)
			}
		})
	})
}
