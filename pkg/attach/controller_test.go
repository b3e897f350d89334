package attach

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func wantCalls(t *testing.T, r *rig, want ...string) {
	t.Helper()
	if diff := cmp.Diff(strings.Join(want, "\n"), r.driver.log()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func wantAttached(t *testing.T, r *rig, name string, want bool) *storagev1.VolumeAttachment {
	t.Helper()
	a := r.api.va(name)
	if a == nil {
		t.Fatalf("VolumeAttachment %s is gone", name)
	}
	if a.Status.Attached != want {
		t.Errorf("VolumeAttachment %s: attached is %v, want %v; attachError %v", name, a.Status.Attached, want, a.Status.AttachError)
	}
	return a
}

func wantGone(t *testing.T, r *rig, name string) {
	t.Helper()
	if a := r.api.va(name); a != nil {
		t.Errorf("VolumeAttachment %s is still there: %v", name, a.Finalizers)
	}
}

func TestAttachAndDetach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			a := wantAttached(t, r, "va", true)
			if !slices.Contains(a.Finalizers, finalizer) || a.Annotations[volume.AnnotationNodeID] != "id-n1" {
				t.Errorf("no intent: %v %v", a.Finalizers, a.Annotations)
			}
			if a.Status.AttachmentMetadata["device"] != "/dev/h-a" {
				t.Errorf("metadata is %v", a.Status.AttachmentMetadata)
			}
			if !slices.Contains(r.api.pv("a").Finalizers, finalizer) {
				t.Error("the PersistentVolume has no finalizer")
			}
			if !r.c.Holds("h-a") {
				t.Error("Holds is false while the volume is attached")
			}
			if n := r.api.patched("volumeattachments/") + r.api.patched("volumeattachments/status"); n != 2 {
				t.Errorf("%d writes for an attach, want 2", n)
			}
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
			if n := r.api.patched("volumeattachments/") + r.api.patched("volumeattachments/status"); n != 3 {
				t.Errorf("%d writes for attach and detach, want 3", n)
			}
			if r.c.Holds("h-a") {
				t.Error("Holds is true after the detach")
			}
			r.api.remove(pvResource, "a")
			r.settle(time.Second)
			if p := r.api.pv("a"); p != nil {
				t.Errorf("the PersistentVolume stays: %v", p.Finalizers)
			}
			if n := len(r.c.ledger.volumes) + len(r.c.ledger.refs) + len(r.c.ledger.byPV); n != 0 {
				t.Errorf("%d entries are left in the ledger", n)
			}
		})
	})
}

func TestPublishRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := pv("a", v1.ReadWriteMany)
		block := v1.PersistentVolumeFilesystem
		p.Spec.VolumeMode = &block
		p.Spec.CSI.FSType, p.Spec.CSI.ReadOnly, p.Spec.MountOptions = "xfs", true, []string{"noatime"}
		p.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "s"}
		secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"password": []byte("hunter2")}}
		r := newRig(newFakeDriver(), objects(p, node("n1"), secret)...)
		r.config = func(cfg *Config) {
			cfg.Capabilities = func() Capabilities { return Capabilities{PublishReadOnly: true} }
		}
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
			req := r.driver.requests[0]
			mount := req.VolumeCapability.GetMount()
			if mount.GetFsType() != "xfs" || !slices.Equal(mount.GetMountFlags(), []string{"noatime"}) || !req.Readonly ||
				req.VolumeContext["pool"] != "fast" || req.Secrets["password"] != "hunter2" ||
				req.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER {
				t.Errorf("request is %v", req)
			}
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			if got := r.driver.secrets[1]["password"]; got != "hunter2" {
				t.Errorf("unpublish had the secret %q", got)
			}
		})
	})
}

func TestSecondNodeWaitsForDetach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.api.add(va("va2", "a", "n2"))
			r.settle(10 * time.Minute)
			wantAttached(t, r, "va2", false)
			wantCalls(t, r, "publish h-a id-n1")
			if e := <-r.events.Events; !strings.Contains(e, ReasonWaitingForDetach) || !strings.Contains(e, "n1") {
				t.Errorf("event is %q", e)
			}
			r.api.remove(vaResource, "va1")
			r.settle(10 * time.Millisecond) // driven by the event, not by a poll
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n2")
		})
	})
}

func TestSharedVolumeGoesToTwoNodesAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(pv("a", v1.ReadWriteMany), node("n1"), node("n2"))...)
		r.driver.set(behaviour{effect: true, takes: 5 * time.Second})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.api.add(va("va2", "a", "n2"))
			r.settle(6 * time.Second)
			wantAttached(t, r, "va1", true)
			wantAttached(t, r, "va2", true)
		})
	})
}

// ALREADY_EXISTS: the driver has the volume on the node, in a way that nobody
// asked for and no VolumeAttachment tells of. It comes off there first.
func TestIncompatiblePublicationIsUnpublishedBeforeAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.driver.apply("publish", "h-a", "id-n1")
		r.driver.setFunc(func(method, _, nodeID string) behaviour {
			if outcome, _ := csiclient.Classify(csiclient.Publish, codes.AlreadyExists); method == "publish" && nodeID == "id-n1" {
				return behaviour{err: &callError{codes.AlreadyExists, outcome, "published in another way"}}
			}
			return healthy
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(500 * time.Millisecond)
			r.api.add(va("va2", "a", "n2"))
			r.settle(10 * time.Millisecond)
			wantCalls(t, r, "publish h-a id-n1")
			r.api.remove(vaResource, "va1")
			r.settle(10 * time.Millisecond)
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n2")
		})
	})
}

func TestRefusedNodeKeepsNobodyAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.driver.setFunc(func(method, _, nodeID string) behaviour {
			if method == "publish" && nodeID == "id-n1" {
				return behaviour{err: errRefused}
			}
			return healthy
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(500 * time.Millisecond)
			a := wantAttached(t, r, "va1", false)
			if a.Status.AttachError == nil || a.Status.AttachError.ErrorCode == nil || *a.Status.AttachError.ErrorCode != 3 {
				t.Errorf("attachError is %v, want code 3", a.Status.AttachError)
			}
			r.api.add(va("va2", "a", "n2"))
			r.settle(500 * time.Millisecond)
			wantAttached(t, r, "va2", true)
			r.api.remove(vaResource, "va1")
			r.settle(time.Second)
			wantGone(t, r, "va1")
			if !strings.HasSuffix(r.driver.log(), "unpublish h-a id-n1") {
				t.Errorf("the refused one was released without an unpublish:\n%s", r.driver.log())
			}
			if !r.driver.has("h-a", "id-n2") {
				t.Error("the other node lost the volume")
			}
		})
	})
}

// The first passing failure is not shown, so that kube-controller-manager does
// not back off; the second is.
func TestPassingErrorIsShownAtTheSecondTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"), node("n1"))...)
		r.driver.set(behaviour{err: errAborted})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(500 * time.Millisecond)
			if e := r.api.va("va").Status.AttachError; e != nil {
				t.Errorf("shown at once: %v", e)
			}
			r.settle(2 * time.Second)
			if e := r.api.va("va").Status.AttachError; e == nil || !strings.Contains(e.Message, "busy") {
				t.Errorf("not shown: %v", e)
			}
			r.driver.set(healthy)
			r.settle(10 * time.Second)
			if a := wantAttached(t, r, "va", true); a.Status.AttachError != nil {
				t.Errorf("the error stays: %v", a.Status.AttachError)
			}
		})
	})
}

// A node that came back under another ID is unpublished by the old one.
func TestNodeCameBackUnderAnotherID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.api.change(csiNodeResource, "n1", func(o runtime.Object) {
				o.(*storagev1.CSINode).Spec.Drivers[0].NodeID = "id-new"
			})
			r.settle(time.Second)
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-new")
		})
	})
}

// A status write that failed is made up for without another call.
func TestCommitIsRetriedWithoutACall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"), node("n1"))...)
		r.api.setFault(func(_, sub string) (error, error) {
			if sub == "status" {
				return errAborted, nil
			}
			return nil, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(5 * time.Second)
			wantAttached(t, r, "va", false)
			r.api.setFault(nil)
			r.settle(20 * time.Second)
			a := wantAttached(t, r, "va", true)
			if a.Status.AttachmentMetadata["device"] == "" {
				t.Error("the publish context is lost")
			}
			wantCalls(t, r, "publish h-a id-n1")
		})
	})
}

// An intent whose write got no answer is found again.
func TestLostAnswerToTheIntent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"), node("n1"))...)
		lost := false
		r.api.setFault(func(resource, sub string) (error, error) {
			if resource == "volumeattachments" && sub == "" && !lost {
				lost = true
				return nil, errAborted
			}
			return nil, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(5 * time.Second)
			wantAttached(t, r, "va", true)
			wantCalls(t, r, "publish h-a id-n1")
		})
	})
}

// What cannot be attached says why, once, and is attached when it can be.
func TestUnusableAttachments(t *testing.T) {
	other := rwo("other")
	other.Spec.CSI.Driver = "other.example.com"
	nohandle := rwo("nohandle")
	nohandle.Spec.CSI.VolumeHandle = ""
	local := rwo("local")
	local.Spec.CSI = nil
	inline := va("inline", "", "n1")
	inline.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &v1.PersistentVolumeSpec{}}
	neither := va("neither", "", "n1")
	neither.Spec.Source = storagev1.VolumeAttachmentSource{}
	both := va("both", "late", "n1")
	both.Spec.Source.InlineVolumeSpec = &v1.PersistentVolumeSpec{}
	foreign := va("foreign", "late", "n1")
	foreign.Spec.Attacher = "other.example.com"
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(other, nohandle, local, node("n1"), inline, neither, both, foreign,
			va("other", "other", "n1"), va("nohandle", "nohandle", "n1"), va("local", "local", "n1"), va("late", "late", "n1"))...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Hour)
			for name, want := range map[string]string{
				"other": "belongs to driver", "nohandle": "no volume handle", "local": "not a CSI volume", "late": "does not exist",
				"inline": "names no CSI volume", "neither": "exactly one", "both": "exactly one",
			} {
				if a := wantAttached(t, r, name, false); a.Status.AttachError == nil || !strings.Contains(a.Status.AttachError.Message, want) {
					t.Errorf("%s: attachError is %v, want %q", name, a.Status.AttachError, want)
				}
			}
			if n := r.api.patched("volumeattachments/status"); n != 7 {
				t.Errorf("%d status writes, want 7: one each", n)
			}
			if a := wantAttached(t, r, "foreign", false); a.Status.AttachError != nil {
				t.Error("another driver's was touched")
			}
			r.api.add(rwo("late"))
			r.settle(10 * time.Millisecond)
			if a := wantAttached(t, r, "late", true); a.Status.AttachError != nil {
				t.Errorf("the error stays: %v", a.Status.AttachError)
			}
			wantCalls(t, r, "publish h-late id-n1")
		})
	})
}

// A finalizer taken off by hand leaks nothing while this process lives.
func TestFinalizerStripped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.api.change(vaResource, "va", func(o runtime.Object) { o.(*storagev1.VolumeAttachment).Finalizers = nil })
			r.api.remove(vaResource, "va")
			r.api.add(va("va2", "a", "n2"))
			r.settle(time.Second)
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n2")
		})
	})
}

func TestTrivial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		leftover := published("old", "a", "n1", true)
		r := newRig(newFakeDriver(), objects(leftover, va("va", "a", "n1"))...)
		r.config = func(cfg *Config) { cfg.Trivial, cfg.Driver = true, nil }
		r.run(t, func(t *testing.T) {
			r.settle(time.Second)
			if a := wantAttached(t, r, "va", true); len(a.Finalizers) > 0 {
				t.Errorf("finalizers %v", a.Finalizers)
			}
			r.api.remove(vaResource, "va")
			r.api.remove(vaResource, "old")
			r.settle(time.Second)
			wantGone(t, r, "va")
			wantGone(t, r, "old")
			wantCalls(t, r, "")
		})
	})
}

// W5: without the lease nothing is written and nothing called.
func TestNotLeader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"), node("n1"), va("va", "a", "n1"), va("bad", "none", "n1"))...)
		r.config = func(cfg *Config) { cfg.IsLeader = func() bool { return false } }
		r.run(t, func(t *testing.T) {
			r.settle(time.Hour)
			wantCalls(t, r, "")
			for _, action := range r.api.Actions() {
				if action.GetVerb() == "patch" {
					t.Errorf("wrote %v", action)
				}
			}
		})
	})
}

// A driver that panics the worker leaves an uncertain key, and the rest works.
func TestPanicIsContained(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), rwo("b"), node("n1"), node("n2"))...)
		first := true
		r.driver.setFunc(func(_, handle, _ string) behaviour {
			if handle == "h-a" && first {
				first = false
				defer r.driver.mu.Unlock()
				panic("on purpose")
			}
			return healthy
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.api.add(va("vb", "b", "n1"))
			r.settle(500 * time.Millisecond)
			wantAttached(t, r, "vb", true)
			r.api.add(va("va2", "a", "n2"))
			r.settle(100 * time.Millisecond)
			wantAttached(t, r, "va2", false)
			r.settle(5 * time.Second)
			wantAttached(t, r, "va", true)
		})
	})
}

func TestConfigIsValidated(t *testing.T) {
	api := newFakeAPI()
	good := Config{DriverName: testDriver, Driver: newFakeDriver(), Client: api, Informers: informers.NewSharedInformerFactory(api, 0)}
	if _, err := New(good); err != nil {
		t.Fatalf("a good config: %v", err)
	}
	for name, spoil := range map[string]func(*Config){
		"DriverName":         func(c *Config) { c.DriverName = "" },
		"Driver":             func(c *Config) { c.Driver = nil },
		"Client":             func(c *Config) { c.Client = nil },
		"Informers":          func(c *Config) { c.Informers = nil },
		"Workers":            func(c *Config) { c.Workers = -1 },
		"Timeout":            func(c *Config) { c.Timeout = -1 },
		"RetryIntervalStart": func(c *Config) { c.RetryIntervalStart, c.RetryIntervalMax = 2, 1 },
	} {
		cfg := good
		spoil(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}
