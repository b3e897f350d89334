package attach

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// fence calls Fence and waits for its result.
func (r *rig) fence(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return r.c.Fence(ctx, r.api.va(name))
}

func TestFence(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.api.add(va("va2", "a", "n2"))
			r.api.remove(nodeResource, "n1")
			r.api.remove(csiNodeResource, "n1")
			r.record("va1")
			r.settle(time.Second)
			wantCalls(t, r, "publish h-a id-n1") // the record alone unpublishes nothing
			if err := r.fence("va1"); err != nil {
				t.Fatal(err)
			}
			r.settle(10 * time.Millisecond)
			wantAttached(t, r, "va2", true)
			wantAttached(t, r, "va1", true) // its deletion says that it is detached
			if err := r.fence("va1"); err != nil {
				t.Errorf("a second time: %v", err)
			}
			r.api.remove(vaResource, "va1")
			r.settle(time.Second)
			wantGone(t, r, "va1")
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n2")
		})
	})
}

// A fence waits for the publish in flight, so that this cannot land after it.
func TestFenceWaitsForThePublishInFlight(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.driver.setFunc(func(method, _, _ string) behaviour {
			if method == "publish" {
				return behaviour{effect: true, takes: time.Hour}
			}
			return healthy
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.record("va")
			began := time.Now()
			if err := r.fence("va"); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d < 13*time.Second || d > 15*time.Second {
				t.Errorf("the fence took %v, want the rest of the call's 15 s", d)
			}
			if r.driver.has("h-a", "id-n1") {
				t.Error("the volume is still there after the fence")
			}
			r.settle(time.Hour)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
		})
	})
}

func TestFenceThatFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.api.add(va("va2", "a", "n2"))
			r.record("va1")
			r.driver.set(behaviour{err: errRefused})
			if err := r.fence("va1"); !errors.Is(err, error(errRefused)) {
				t.Fatalf("error is %v", err)
			}
			r.settle(time.Hour)
			wantAttached(t, r, "va2", false)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
			r.driver.set(healthy)
			if err := r.fence("va1"); err != nil {
				t.Fatal(err)
			}
			r.settle(time.Second)
			wantAttached(t, r, "va2", true)
		})
	})
}

// The node gets the volume back only once the hold is gone, by a live read.
func TestFencedNodeIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), rwo("b"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.hold("n1", "h-a")
			r.record("va")
			if err := r.fence("va"); err != nil {
				t.Fatal(err)
			}
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			if r.c.Holds("h-a") {
				t.Error("a fenced key without a VolumeAttachment holds its volume")
			}
			r.api.add(va("va", "a", "n1"))
			r.api.add(va("vb", "b", "n1"))
			r.settle(time.Hour)
			wantAttached(t, r, "va", false)
			wantAttached(t, r, "vb", true) // the hold names another volume
			r.hold("n1")
			r.settle(10 * time.Millisecond)
			wantAttached(t, r, "va", true)
		})
	})
}

// A fenced key is remembered for a while after its VolumeAttachment is gone, and
// then forgotten, also one of which nothing but the fence is known.
func TestFencedKeyIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), rwo("b"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.record("va")
			if err := r.fence("va"); err != nil {
				t.Fatal(err)
			}
			r.api.remove(vaResource, "va")
			gone := published("vb", "b", "n1", true)
			gone.Annotations[volume.AnnotationFenced] = "{}"
			if err := r.c.Fence(context.Background(), gone); err != nil {
				t.Fatal(err)
			}
			fenced := func() int {
				return len(r.c.ledger.keysWhere(func(_ volume.Key, s State) bool { return s == Fenced }))
			}
			r.settle(fencedMemory / 2)
			if n := fenced(); n != 2 {
				t.Errorf("%d fenced keys, want both", n)
			}
			r.api.add(va("va", "a", "n1")) // starts again with the next departure
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
			r.record("va")
			if err := r.fence("va"); err != nil {
				t.Fatal(err)
			}
			r.api.remove(vaResource, "va")
			r.settle(fencedMemory/2 + time.Minute)
			if n := fenced(); n != 1 {
				t.Errorf("%d fenced keys, want the one that was fenced last", n)
			}
			r.settle(fencedMemory)
			if n := fenced(); n != 0 || len(r.c.Volumes()) != 0 {
				t.Errorf("%d fenced keys are never forgotten: %+v", n, r.c.Volumes())
			}
		})
	})
}

// The same where the fence was a former leader's, and where the hold cannot be
// read.
func TestHoldAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.hold("n1", "h-a")
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Hour)
			wantCalls(t, r, "")
			r.api.change(nodeResource, "n1", func(o runtime.Object) {
				annotate(o, volume.HoldKey(testDriver), "{nonsense")
			})
			r.settle(time.Hour)
			wantCalls(t, r, "")
			r.hold("n1")
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
		})
	})
}

func TestRecordForbidsPublish(t *testing.T) {
	bubble(t, func(t *testing.T) {
		fenced := va("va", "a", "n1")
		annotate(fenced, volume.AnnotationFenced, "unreadable")
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), fenced)...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Hour)
			wantCalls(t, r, "")
			// Never published and no ID recorded: the node's own is used.
			if err := r.fence("va"); err != nil {
				t.Fatal(err)
			}
			wantCalls(t, r, "unpublish h-a id-n1")
		})
	})
}

// A record that keeps a VolumeAttachment back and that nobody acts on is shown,
// once.
func TestRecordThatLastsIsShown(t *testing.T) {
	for what, value := range map[string]string{
		"was written for another one": `{"node":"n1","targets":[{"pv":"a","node":"n1","volumeAttachmentUID":"old"}]}`,
		"has not finished":            `{"node":"n1","targets":[{"pv":"a","node":"n1","volumeAttachmentUID":"mine"}]}`,
		"cannot be read":              "nonsense",
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
				r.run(t, func(t *testing.T) {
					a := va("va", "a", "n1")
					a.UID = "mine"
					annotate(a, volume.AnnotationFenced, value)
					r.api.add(a)
					r.settle(50 * time.Second)
					if e := r.api.va("va").Status.AttachError; e != nil || len(r.events.Events) > 0 {
						t.Errorf("shown at once: %v", e)
					}
					r.settle(time.Minute)
					r.restart()
					r.settle(time.Hour)
					if e := r.api.va("va").Status.AttachError; e == nil || !strings.Contains(e.Message, what) {
						t.Errorf("attachError is %v, want %q", e, what)
					}
					if n := len(r.events.Events); n != 1 || r.api.patched("volumeattachments/status") != 1 {
						t.Errorf("%d events, %d writes of the status, want one of each", n, r.api.patched("volumeattachments/status"))
					}
					wantCalls(t, r)
					r.api.change(vaResource, "va", func(o runtime.Object) { annotate(o, "other", "") })
					r.settle(time.Second)
					if e := wantAttached(t, r, "va", true).Status.AttachError; e != nil {
						t.Errorf("attachError stays: %v", e)
					}
				})
			})
		})
	}
}

// A record that lands between the decision to publish and the intent makes the
// intent conflict, and nothing is published; so does a VolumeAttachment that was
// deleted and made again under the same name.
func TestIntentConflicts(t *testing.T) {
	for name, meanwhile := range map[string]func(*storagev1.VolumeAttachment){
		"fence record": func(a *storagev1.VolumeAttachment) { annotate(a, volume.AnnotationFenced, "{}") },
		"deletion": func(a *storagev1.VolumeAttachment) {
			a.DeletionTimestamp, a.Finalizers = &metav1.Time{Time: time.Now()}, []string{"other"}
		},
		"successor": func(a *storagev1.VolumeAttachment) { a.UID = "another"; annotate(a, volume.AnnotationFenced, "{}") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
				done := false
				r.api.setFault(func(resource, sub string) (error, error) {
					if resource == "volumeattachments" && sub == "" && !done {
						done = true
						a := r.api.va("va")
						meanwhile(a)
						r.api.store(vaResource, a)
					}
					return nil, nil
				})
				r.run(t, func(t *testing.T) {
					r.api.add(va("va", "a", "n1"))
					r.settle(time.Hour)
					wantCalls(t, r, "")
					if f := r.api.va("va").Finalizers; !done || slices.Contains(f, finalizer) {
						t.Errorf("the intent was written: %v, finalizers %v", done, f)
					}
				})
			})
		})
	}
}

// A publish that is not the first one goes by a live read: the informer may not
// know of the record yet.
func TestRepublishReadsLive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.driver.set(behaviour{err: errTimeout})
		r.api.PrependReactor("get", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
			live := r.api.va("va")
			live.Annotations[volume.AnnotationFenced] = "{}"
			return true, live, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(500 * time.Millisecond)
			r.driver.set(healthy)
			r.settle(time.Hour)
			wantCalls(t, r, "publish h-a id-n1")
		})
	})
}

// So does the first one onto a node: the hold may be a former leader's last
// write. Once that one can write no more, one read of a node is enough.
func TestFirstPublishReadsTheHoldLive(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"), rwo("b"), rwo("c"), rwo("d"), node("n1"), node("n2"))...)
		var reads atomic.Int64
		var held atomic.Bool
		held.Store(true)
		r.api.PrependReactor("get", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			name := a.(clienttesting.GetAction).GetName()
			reads.Add(1)
			if name != "n1" || !held.Load() {
				return false, nil, nil
			}
			live := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
			value, err := volume.HoldRecord{Volumes: []volume.HeldVolume{{Handle: "h-a", Fenced: true}}}.Encode()
			must(err)
			annotate(live, volume.HoldKey(testDriver), value)
			return true, live, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.api.add(va("vb", "b", "n1")) // the hold names another volume
			r.settle(20 * time.Minute)
			wantCalls(t, r, "publish h-b id-n1")
			wantAttached(t, r, "va", false)
			held.Store(false)
			r.settle(20 * time.Minute)
			wantAttached(t, r, "va", true)
			r.api.add(va("vb2", "b", "n2"))
			r.api.add(va("vd", "d", "n2"))
			r.api.remove(vaResource, "vb")
			r.settle(time.Second)
			before := reads.Load()
			r.api.add(va("vc", "c", "n1"))
			r.api.add(va("vc2", "c", "n2"))
			r.api.remove(vaResource, "vd")
			r.settle(time.Second)
			r.api.add(va("vd", "d", "n1"))
			r.settle(time.Second)
			wantAttached(t, r, "vc", true)
			wantAttached(t, r, "vd", true)
			if n := reads.Load() - before; n != 0 {
				t.Errorf("%d reads of Nodes that are known, want none", n)
			}
		})
	})
}

func TestFenceRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		unknown := va("unknown", "a", "n2")
		annotate(unknown, volume.AnnotationFenced, "{}")
		nowhere := va("nowhere", "none", "n1")
		annotate(nowhere, volume.AnnotationFenced, "{}")
		foreign := va("foreign", "a", "n1")
		foreign.Spec.Attacher = "other.example.com"
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), va("bare", "a", "n1"), unknown, nowhere, foreign)...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Second)
			calls := r.driver.log()
			for name, want := range map[string]string{
				"bare": "no fence record", "unknown": "node ID", "nowhere": "does not exist", "foreign": "belongs to",
			} {
				if err := r.fence(name); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: error is %v, want %q", name, err, want)
				}
			}
			stale := r.record("bare")
			r.api.remove(vaResource, "bare")
			r.settle(time.Second)
			r.api.add(va("bare", "a", "n1"))
			r.settle(time.Second)
			if err := r.c.Fence(context.Background(), stale); err == nil || !strings.Contains(err.Error(), "made again") {
				t.Errorf("fence of a predecessor: %v", err)
			}
			wantAttached(t, r, "bare", true)
			if !strings.HasPrefix(r.driver.log(), calls) || !r.driver.has("h-a", "id-n1") {
				t.Errorf("calls:\n%s", r.driver.log())
			}
		})
		if err := r.fence("bare"); err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestFenceIsBoundedByItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), published("va", "a", "n1", true))...)
		r.run(t, func(t *testing.T) {
			r.record("va")
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if err := r.c.Fence(ctx, r.api.va("va")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error is %v", err)
			}
			wantCalls(t, r, "")
		})
	})
}

func annotate(obj runtime.Object, key, value string) {
	switch o := obj.(type) {
	case *storagev1.VolumeAttachment:
		o.Annotations = map[string]string{key: value}
	default:
		m := resourceMeta(obj)
		m.SetAnnotations(map[string]string{key: value})
	}
}
