package attach

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// External-attacher left va1 attached, without a handle; its PersistentVolume
// comes late, and the event of another VolumeAttachment sooner than that of it.
func TestPersistentVolumeComesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		d.alter("publish", "h-a", "id-n1")
		r := newRig(d, objects(published("va1", "a", "n1", true), node("n1"), node("n2"))...)
		r.api.PrependWatchReactor("persistentvolumes", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, watch.NewFake(), nil
		})
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			r.api.add(rwo("a"))
			must(r.c.pvInformer.GetStore().Add(r.api.pv("a")))
			r.api.add(va("va2", "a", "n2"))
			r.settle(10 * time.Second)
			wantAttached(t, r, "va1", true)
			wantAttached(t, r, "va2", false)
			wantCalls(t, r, "")
		})
	})
}

// The former leader's removal of the finalizer comes late.
func TestFormerLeadersDetachComesLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		d.alter("publish", "h-a", "id-n1")
		r := newRig(d, objects(rwo("a"), published("va1", "a", "n1", true), node("n1"))...)
		r.api.remove(vaResource, "va1")
		r.run(t, func(t *testing.T) {
			d.alter("unpublish", "h-a", "id-n1")
			r.api.change(vaResource, "va1", func(o runtime.Object) { o.(*storagev1.VolumeAttachment).Finalizers = nil })
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Minute)
			wantAttached(t, r, "va1", true)
			if !d.has("h-a", "id-n1") {
				t.Errorf("attached, and not there; calls %q", d.log())
			}
		})
	})
}

// Intent that may not have landed does not keep.
func TestIntentInDoubtDoesNotKeep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		twin := rwo("b")
		twin.Spec.CSI.VolumeHandle = "h-a"
		r := newRig(d, objects(rwo("a"), twin, node("n1"), node("n2"))...)
		r.start()
		r.api.add(va("va1", "a", "n1"))
		r.settle(time.Second)
		wantAttached(t, r, "va1", true)
		r.api.setFault(func(resource, sub string) (error, error) {
			if resource == "volumeattachments" && sub == "" {
				return errors.New("connection reset"), nil
			}
			return nil, nil
		})
		r.api.add(va("va2", "b", "n1"))
		r.settle(100 * time.Millisecond)
		n := 0
		r.api.setFault(func(_, _ string) (error, error) {
			if n++; n > 1 {
				return errors.New("connection reset"), nil
			}
			return nil, nil
		})
		r.api.remove(vaResource, "va1")
		r.settle(10 * time.Millisecond)
		if a := r.api.va("va1"); a == nil && d.has("h-a", "id-n1") && !hasFinalizer(r.api.va("va2").Finalizers, finalizer) {
			t.Error("no durable intent for a volume that is there")
		}
		r.stop()
		r.api.setFault(nil)
		r.api.remove(vaResource, "va2")
		r.api.add(va("va3", "a", "n2"))
		r.start()
		r.settle(time.Minute)
		r.stop()
		if err := d.check(); err != nil {
			t.Error(err)
		}
	})
}

// A finalizer stripped off a live VA is put back.
func TestStrippedFinalizerIsPutBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := newRig(d, objects(rwo("a"), node("n1"), node("n2"))...)
		r.start()
		r.api.add(va("va1", "a", "n1"))
		r.settle(time.Second)
		r.api.change(vaResource, "va1", func(o runtime.Object) { o.(*storagev1.VolumeAttachment).Finalizers = nil })
		r.settle(time.Second)
		if !hasFinalizer(r.api.va("va1").Finalizers, finalizer) {
			t.Error("not put back")
		}
		r.stop()
		r.api.remove(vaResource, "va1")
		r.api.add(va("va2", "a", "n2"))
		r.start()
		r.settle(time.Minute)
		r.stop()
		if err := d.check(); err != nil {
			t.Error(err)
		}
	})
}

// A volume in use stays where it is, though its node has another ID by now and
// somebody takes our finalizer off its VolumeAttachment.
func TestStrippedInUseUnderAnotherID(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.api.change(csiNodeResource, "n1", func(o runtime.Object) {
				o.(*storagev1.CSINode).Spec.Drivers[0].NodeID = "id-new"
			})
			r.settle(time.Second)
			r.api.change(vaResource, "va", func(o runtime.Object) { o.(*storagev1.VolumeAttachment).Finalizers = nil })
			r.settle(time.Minute)
			wantCalls(t, r, "publish h-a id-n1")
			if a := wantAttached(t, r, "va", true); !hasFinalizer(a.Finalizers, finalizer) {
				t.Error("the finalizer was not put back")
			}
		})
	})
}

// An orphan of a shared volume keeps nobody away.
func TestOrphanOfASharedVolumeKeepsNobodyAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver()
		d.alter("publish", "h-s", "id-n1")
		d.setFunc(func(method, _, _ string) behaviour {
			if method == "unpublish" {
				return behaviour{err: errTimeout}
			}
			return healthy
		})
		r := comparing(d, func(cfg *Config) { cfg.DetachOrphans = true }, objects(pv("s", v1.ReadWriteMany), node("n1"), node("n2"))...)
		r.run(t, func(t *testing.T) {
			r.settle(5 * DefaultEvidenceInterval)
			r.api.add(va("va", "s", "n2"))
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
		})
	})
}

// The status after the release is written though the first write fails.
func TestStatusOfTheReleasedIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := newRig(d, objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			a := va("va", "a", "n1")
			a.Finalizers = []string{"other/x"}
			r.api.add(a)
			r.settle(time.Second)
			n := 0
			r.api.setFault(func(_, sub string) (error, error) {
				if sub == "status" {
					if n++; n == 1 {
						return errors.New("connection reset"), nil
					}
				}
				return nil, nil
			})
			r.api.remove(vaResource, "va")
			r.settle(time.Minute)
			wantAttached(t, r, "va", false)
		})
	})
}

// A migrated volume in use, with a second PersistentVolume of CSI's form.
func TestMigratedVolumeIsNoOrphan(t *testing.T) {
	const handle, full, nodeID = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/disk", "projects/p/zones/z/disks/disk", "projects/p/zones/z/instances/n1"
	bubble(t, func(t *testing.T) {
		d := newFakeDriver(handle)
		d.setList(func(_ context.Context, truth publications) (publications, error) {
			return publications{full: truth[handle]}, nil
		})
		csiPV := rwo("new")
		csiPV.Spec.CSI.Driver, csiPV.Spec.CSI.VolumeHandle = gceDriver, full
		r := migrated(d, gcePV("pv"), csiPV)
		old := r.config
		r.config = func(cfg *Config) { old(cfg); cfg.DetachOrphans = true }
		r.run(t, func(t *testing.T) {
			a := va("va", "pv", "n1")
			a.Spec.Attacher = gceDriver
			r.api.add(a)
			r.settle(10 * time.Minute)
			wantCalls(t, r, "publish "+handle+" "+nodeID)
			if e := strings.Join(r.told(), "\n"); e != "" {
				t.Error(e)
			}
		})
	})
}

// The API server does not take the publish context.
func TestPublishContextIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := newRig(d, objects(rwo("a"), node("n1"))...)
		r.api.PrependReactor("patch", "volumeattachments", func(a clienttesting.Action) (bool, runtime.Object, error) {
			p := a.(clienttesting.PatchAction)
			if strings.Contains(string(p.GetPatch()), `"device"`) {
				r.api.mu.Lock()
				r.api.patches["refused"]++
				r.api.mu.Unlock()
				return true, nil, apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment").GroupKind(), p.GetName(), nil)
			}
			return false, nil, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(10 * time.Minute)
			a := wantAttached(t, r, "va", false)
			if a.Status.AttachError == nil || r.api.patched("refused") > 15 || r.api.patched("volumeattachments/status") > 15 {
				t.Error("hot or silent")
			}
			wantCalls(t, r, "publish h-a id-n1")
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
		})
	})
}

// The live list has what the informer has seen go already.
func TestGhostOfTheLiveList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := newRig(d, objects(rwo("a"), node("n1"), node("n2"))...)
		ghost := published("ghost", "a", "n1", true)
		ghost.UID, ghost.ResourceVersion = "ghost", "1"
		lists := 0
		r.api.PrependReactor("list", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
			r.api.mu.Lock()
			defer r.api.mu.Unlock()
			if lists++; lists == 2 {
				return true, &storagev1.VolumeAttachmentList{Items: []storagev1.VolumeAttachment{*ghost}}, nil
			}
			return false, nil, nil
		})
		r.run(t, func(t *testing.T) {
			if lists != 2 {
				t.Fatalf("%d lists", lists)
			}
			r.api.add(va("va", "a", "n2"))
			r.settle(10 * time.Minute)
			wantAttached(t, r, "va", true)
		})
	})
}

// The node registers under another ID between the decision and the call: the volume
// is not published by an ID that nobody decided about, or it would be there by both.
func TestNodeIDChangesBeforeTheCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			for _, decidedBy := range []string{"", "id-old"} {
				s := step{
					Action: Action{Kind: Publish}, key: volume.Key{Handle: "h-a", Node: "n1"}, va: va("va", "a", "n1"),
					facts: facts{nodeID: decidedBy},
				}
				if err := r.c.publish(t.Context(), &claim{step: s}); !errors.Is(err, errChanged) {
					t.Errorf("decided by %q: %v, want %v", decidedBy, err, errChanged)
				}
			}
			wantCalls(t, r, "")
		})
	})
}

// A machine that is registered anew under another name keeps what it has when the
// VolumeAttachment of its old name goes, and loses it with the last one.
func TestMachineUnderTwoNames(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver()
		r := newRig(d, objects(pv("a", v1.ReadWriteMany), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(10 * time.Second)
			r.api.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1-again"}})
			r.api.add(csiNode("n1-again", "id-n1"))
			r.api.add(va("va2", "a", "n1-again"))
			r.settle(10 * time.Second)
			wantAttached(t, r, "va2", true)
			r.api.remove(vaResource, "va1")
			r.settle(10 * time.Second)
			if r.api.va("va1") != nil {
				t.Error("the VolumeAttachment of the old name stays")
			}
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "publish h-a id-n1")
			r.restart()
			r.api.remove(vaResource, "va2")
			r.settle(time.Minute)
			wantCalls(t, r, "publish h-a id-n1", "publish h-a id-n1", "unpublish h-a id-n1")
		})
	})
}

// While the volume is taken from a machine under its old name it is not given to it
// under the new one: the later call of the two is to be the one that counts.
func TestMachineUnderTwoNamesOneCallAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver()
		r := newRig(d, objects(pv("a", v1.ReadWriteMany), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(10 * time.Second)
			d.set(behaviour{effect: true, takes: 5 * time.Second})
			r.api.remove(vaResource, "va1")
			r.settle(time.Second)
			r.api.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1-again"}})
			r.api.add(csiNode("n1-again", "id-n1"))
			r.api.add(va("va2", "a", "n1-again"))
			r.settle(time.Minute)
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n1")
			if !d.has("h-a", "id-n1") {
				t.Error("attached, and not there")
			}
		})
	})
}
