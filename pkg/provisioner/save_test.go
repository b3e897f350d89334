package provisioner

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const savedName = "pvc-uid-1-1"

// csiMaker makes CSI volumes with the handle.
func csiMaker(handle string) *maker {
	return &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
		v := nfsVolume(o)
		csiVolume(ourName, handle)(v)
		return v, ProvisioningFinished, nil
	}}
}

func claimed(uid types.UID) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) {
		v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: "default", Name: "claim-1", UID: uid}
	}
}

// appears makes a PersistentVolume come up just before ours is created.
func appears(v *v1.PersistentVolume) func(*fake.Clientset) {
	return func(c *fake.Clientset) {
		first := true
		c.PrependReactor("create", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if first {
				first = false
				v.ResourceVersion = "1"
				return false, nil, c.Tracker().Create(action.GetResource(), v, "")
			}
			return false, nil, nil
		})
	}
}

// TestSaveFails: the volume is made once, and its PersistentVolume is tried for
// as long as it takes; it is counted and told meanwhile.
func TestSaveFails(t *testing.T) {
	for times := 1; times <= 3; times++ {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{objects: oneClaim(), before: failing("create", "persistentvolumes", times), noResync: true, exponential: true})
			w.rest(1)
			if background, unsaved := w.ctrl.ops.background(); background != 0 || unsaved != 1 {
				t.Errorf("%d in the background and %d unsaved, want one that is unsaved", background, unsaved)
			}
			if events := w.told(); len(events) != 1 || !strings.Contains(events[0], "Error creating provisioned PV object for claim default/claim-1") {
				t.Errorf("events: %q", events)
			}
			w.rest(50)
			if made, removed := w.maker.calls(); made != 1 || removed != 0 || len(w.pvs()) != 1 || len(w.inProgress()) != 0 {
				t.Errorf("%d failures: %d made, %d deleted, %d saved, in progress %v", times, made, removed, len(w.pvs()), w.inProgress())
			}
			if got := w.maker.settledOf(); len(got) != 1 {
				t.Errorf("settled: %v, want once, when it is saved", got)
			}
		})
	}
}

// TestSaveIsForbidden: the event says what to allow, and the volume is saved once
// that is.
func TestSaveIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim(), before: forbidden("create", "persistentvolumes", 3), noResync: true, exponential: true})
		w.rest(50)
		if events := w.told(); len(events) != 4 || !strings.Contains(events[0], "allow create of persistentvolumes") || !strings.Contains(events[3], ReasonProvisioned) {
			t.Errorf("events: %q", events)
		}
		if made, removed := w.maker.calls(); made != 1 || removed != 0 || len(w.pvs()) != 1 {
			t.Errorf("%d made, %d deleted, %d saved", made, removed, len(w.pvs()))
		}
	})
}

// TestUnsavedIsNotSettled: while a PersistentVolume cannot be saved, an earlier
// record of its volume must stay.
func TestUnsavedIsNotSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim(), before: failing("create", "persistentvolumes", 0)})
		w.rest(20)
		if got := w.maker.settledOf(); len(got) != 0 {
			t.Errorf("settled: %v", got)
		}
	})
}

// TestClaimGoesWhileUnsaved: the volume is deleted at once where the server will
// not have its PersistentVolume. Where an answer was lost, that may have been
// saved, the claim bound and used, and both deleted since: what is to be retained
// is retained.
func TestClaimGoesWhileUnsaved(t *testing.T) {
	rejected := apierrors.NewForbidden(v1.Resource("persistentvolumes"), savedName, errFake)
	for name, c := range map[string]struct {
		// err is the answer at first, later after a second.
		err, later error
		saved      v1.PersistentVolumeReclaimPolicy
		deleted    int
		stays      bool
	}{
		"rejected as invalid":      {err: apierrors.NewInvalid(v1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind(), savedName, nil), deleted: 1},
		"rejected as too large":    {err: apierrors.NewRequestEntityTooLargeError("limit is 3145728"), deleted: 1},
		"rejected by a hook":       {err: rejected, deleted: 1},
		"answer lost, then saved":  {err: errFake, saved: retain},
		"answer lost, then denied": {err: errFake, later: rejected, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w := newWorld(t, setup{objects: []runtime.Object{
					storageClass("class-1", ourName, withPolicy(retain)), claim("claim-1", "uid-1-1", "class-1", ourName),
				}, before: func(f *fake.Clientset) {
					f.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
						err := c.err
						if time.Since(began) >= time.Second {
							err = c.later
						}
						return err != nil, nil, err
					})
				}})
				w.rest(2)
				if _, removed := w.maker.calls(); removed != 0 {
					t.Error("deleted while the claim waits for it")
				}
				w.api.dropClaim("claim-1")
				w.rest(20)
				made, removed := w.maker.calls()
				if made != 1 || removed != c.deleted || (len(w.maker.settledOf()) == 0) != c.stays {
					t.Errorf("%d made, %d deleted, settled %v", made, removed, w.maker.settledOf())
				}
				var policy v1.PersistentVolumeReclaimPolicy
				if v := w.pvs()[savedName]; v != nil {
					policy = v.Spec.PersistentVolumeReclaimPolicy
				}
				if policy != c.saved {
					t.Errorf("saved with policy %q, want %q", policy, c.saved)
				}
				if !c.stays {
					nothingRemembered(t, w)
				}
			})
		})
	}
}

// TestAlreadyExists: what is there under the name decides what becomes of the
// volume that was made.
func TestAlreadyExists(t *testing.T) {
	for name, c := range map[string]struct {
		there *v1.PersistentVolume
		// known is another PersistentVolume, of the same volume.
		known *v1.PersistentVolume
		// stray: the volume that was made is deleted again.
		stray, ok bool
		event     string
	}{
		"same claim and volume: saved": {
			there: pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, ourName, csiVolume(ourName, "h"), claimed("uid-1-1")), ok: true,
			event: "Successfully provisioned",
		},
		"other volume: ours is deleted": {
			there: pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, ourName, csiVolume(ourName, "other"), claimed("uid-1-1")), stray: true,
			event: "exists already with another volume; the volume that was made is deleted again",
		},
		"other driver's volume of that handle: ours is deleted": {
			there: pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, otherName, csiVolume(otherName, "h"), claimed("other")), stray: true,
			event: "exists already with another volume",
		},
		"same volume for another claim: kept": {
			there: pv(savedName, v1.VolumeBound, v1.PersistentVolumeReclaimDelete, ourName, csiVolume(ourName, "h"), claimed("other")),
			event: "names the same volume for another claim",
		},
		"same volume for nobody: kept": {
			there: pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, ourName, csiVolume(ourName, "h")),
			event: "names the same volume for another claim",
		},
		"other volume, and a third PersistentVolume has ours: kept": {
			there: pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, ourName, csiVolume(ourName, "other"), claimed("uid-1-1")),
			known: pv("static", v1.VolumeBound, v1.PersistentVolumeReclaimRetain, "", csiVolume(ourName, "h")),
			event: "is that of PersistentVolume static, and stays",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				objects := oneClaim()
				if c.known != nil {
					objects = append(objects, c.known)
				}
				w := newWorld(t, setup{objects: objects, maker: csiMaker("h"), before: appears(c.there.DeepCopy())})
				w.rest(10)
				made, removed := w.maker.calls()
				if made != 1 || (removed == 1) != c.stray || removed > 1 {
					t.Errorf("%d made, %d deleted", made, removed)
				}
				if got := w.maker.settledOf(); len(got) != 1 || len(w.inProgress()) != 0 {
					t.Errorf("settled %v, in progress %v, want it over once", got, w.inProgress())
				}
				got := w.pvs()[savedName]
				if got == nil || got.UID != c.there.UID || got.Spec.CSI.VolumeHandle != c.there.Spec.CSI.VolumeHandle {
					t.Errorf("what was there is now %+v", got)
				}
				if events := w.told(); !strings.Contains(events[0], c.event) {
					t.Errorf("events: %q", events)
				}
			})
		})
	}
}

// TestStrayThatCannotBeDeleted: it is tried again, and told; the record stays.
func TestStrayThatCannotBeDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := csiMaker("h")
		m.remove = func(*v1.PersistentVolume) error { return errFake }
		there := pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, ourName, csiVolume(ourName, "other"), claimed("uid-1-1"))
		w := newWorld(t, setup{objects: oneClaim(), maker: m, before: appears(there)})
		w.rest(5)
		if made, removed := m.calls(); made != 1 || removed < 2 || len(m.settledOf()) != 0 || len(w.inProgress()) != 1 {
			t.Errorf("%d made, %d attempts to delete, settled %v, in progress %v", made, removed, m.settledOf(), w.inProgress())
		}
		if events := w.told(); !strings.Contains(events[0], ReasonCleanupFailed) {
			t.Errorf("events: %q", events)
		}
		m.mends()
		w.rest(5)
		if len(m.settledOf()) != 1 || len(w.inProgress()) != 0 {
			t.Errorf("settled %v, in progress %v", m.settledOf(), w.inProgress())
		}
	})
}

// TestAnswerLost: the PersistentVolume was saved though the answer says not.
func TestAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim(), noResync: true, exponential: true, before: func(c *fake.Clientset) {
			lost := false
			serve := c.ReactionChain[0].React
			for _, r := range c.ReactionChain {
				if r.Handles(clienttesting.NewRootCreateAction(resourceOf(&v1.PersistentVolume{}), &v1.PersistentVolume{})) {
					serve = r.React
					break
				}
			}
			c.PrependReactor("create", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if lost {
					return false, nil, nil
				}
				lost = true
				if _, _, err := serve(action); err != nil {
					return true, nil, err
				}
				return true, nil, errors.New("the answer was lost")
			})
		}})
		w.rest(50)
		if made, removed := w.maker.calls(); made != 1 || removed != 0 || len(w.pvs()) != 1 || len(w.maker.settledOf()) != 1 {
			t.Errorf("%d made, %d deleted, %d saved, settled %v", made, removed, len(w.pvs()), w.maker.settledOf())
		}
	})
}

// TestAnswerLostThenRejected: the PersistentVolume was saved, the answer was lost,
// and no informer tells of it. By the time that a webhook rejects all, its claim
// was bound, used and deleted, and the volume is to be retained: it is left alone.
func TestAnswerLostThenRejected(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*v1.PersistentVolume)
		removed int
		settled int
		unread  bool
	}{
		"it is there": {settled: 1, change: func(*v1.PersistentVolume) {}},
		"another volume has its name": {settled: 1, removed: 1, change: func(v *v1.PersistentVolume) {
			v.Spec.CSI.VolumeHandle = "other"
		}},
		"it cannot be read": {unread: true, change: func(*v1.PersistentVolume) {}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reads, creates atomic.Int32
				w := newWorld(t, setup{
					objects: []runtime.Object{storageClass("class-1", ourName, withPolicy(retain)), claim("claim-1", "uid-1-1", "class-1", ourName)},
					maker:   csiMaker("h"), noResync: true, exponential: true,
					before: func(f *fake.Clientset) {
						deaf("persistentvolumes")(f)
						f.PrependReactor("create", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
							if creates.Add(1) == 1 {
								return true, nil, errors.New("the answer was lost")
							}
							return true, nil, apierrors.NewForbidden(v1.Resource("persistentvolumes"), savedName, errFake)
						})
						f.PrependReactor("get", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
							reads.Add(1)
							return c.unread, nil, errFake
						})
					},
				})
				w.rest(1)
				there := pv(savedName, v1.VolumeReleased, retain, ourName, csiVolume(ourName, "h"), claimed("uid-1-1"))
				c.change(there)
				w.api.add(there)
				w.api.dropClaim("claim-1")
				w.rest(100)
				if _, removed := w.maker.calls(); removed != c.removed || reads.Load() == 0 {
					t.Errorf("%d volumes deleted, want %d; %d reads", removed, c.removed, reads.Load())
				}
				if got := w.maker.settledOf(); len(got) != c.settled {
					t.Errorf("settled %v, want %d", got, c.settled)
				}
			})
		})
	}
}

// TestPersistentVolumeThereAlready (external-provisioner 124): nothing is made,
// and nothing deleted.
func TestPersistentVolumeThereAlready(t *testing.T) {
	for name, mine := range map[string]bool{"this claim's": true, "another's": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				uid := types.UID("other")
				if mine {
					uid = "uid-1-1"
				}
				w := newWorld(t, setup{objects: append(oneClaim(), pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, ourName, claimed(uid)))})
				w.rest(30)
				if made, removed := w.maker.calls(); made+removed != 0 {
					t.Errorf("%d made, %d deleted", made, removed)
				}
				if events := w.told(); (len(events) == 0) != mine {
					t.Errorf("events: %q", events)
				}
			})
		})
	}
}

// TestPersistentVolumeIsTerminating: the claim waits until the object of its name
// is gone, and is provisioned then.
func TestPersistentVolumeIsTerminating(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{noResync: true, exponential: true, objects: append(oneClaim(),
			pv(savedName, v1.VolumeAvailable, v1.PersistentVolumeReclaimDelete, ourName, claimed("uid-1-1"), withFinalizers("a/b"), terminating))})
		w.rest(5)
		if made, _ := w.maker.calls(); made != 0 {
			t.Fatalf("%d made under a name that is taken", made)
		}
		w.api.editPV(savedName, func(v *v1.PersistentVolume) { v.Finalizers = nil })
		w.rest(1)
		if made, _ := w.maker.calls(); made != 1 || len(w.pvs()) != 1 {
			t.Errorf("%d made, %d PersistentVolumes", made, len(w.pvs()))
		}
	})
}

// deaf makes the watch of a resource tell nothing.
func deaf(res string) func(*fake.Clientset) {
	return func(c *fake.Clientset) {
		c.PrependWatchReactor(res, func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, watch.NewFake(), nil
		})
	}
}

// TestStaleInformer (external-provisioner 1469): the informer shows a claim as
// unbound though its PersistentVolume was bound, released and deleted. It is not
// made again.
func TestStaleInformer(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*fake.Clientset)
		want   int
		during func(*world)
	}{
		"claims: bound, released and deleted": {before: deaf("persistentvolumeclaims"), want: 1, during: func(w *world) {
			w.api.bind("claim-1", savedName)
			w.rest(2)
			w.api.dropClaim("claim-1")
			w.api.release(savedName)
		}},
		"claims: bound, and the PersistentVolume deleted by hand": {before: deaf("persistentvolumeclaims"), want: 1, during: func(w *world) {
			w.api.bind("claim-1", savedName)
			w.api.editPV(savedName, func(v *v1.PersistentVolume) { v.Finalizers = nil })
			w.api.dropPV(savedName)
		}},
		"PersistentVolumes: saved and not seen": {before: deaf("persistentvolumes"), want: 1},
		"none: the PersistentVolume was deleted by hand before it was bound": {before: func(*fake.Clientset) {}, want: 2, during: func(w *world) {
			w.api.editPV(savedName, func(v *v1.PersistentVolume) { v.Finalizers = nil })
			w.api.dropPV(savedName)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{objects: oneClaim(), before: c.before})
				w.rest(5)
				if c.during != nil {
					c.during(w)
				}
				w.rest(50)
				if made, _ := w.maker.calls(); made != c.want {
					t.Errorf("%d volumes made, want %d", made, c.want)
				}
			})
		})
	}
}

// TestClaimReplacedUnseen: the deletion of a claim was missed between two lists,
// and the next of its name shows as a change of it.
func TestClaimReplacedUnseen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim()})
		w.rest(2)
		if w.ctrl.ops.savedAs("uid-1-1") == "" {
			t.Fatal("not remembered as saved")
		}
		edit(w.api, &v1.PersistentVolumeClaim{}, "claim-1", func(c *v1.PersistentVolumeClaim) { c.UID = "uid-1-2" })
		edit(w.api, &v1.PersistentVolume{}, savedName, func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeReleased })
		w.rest(2)
		if w.ctrl.ops.savedAs("uid-1-1") != "" {
			t.Error("the first claim is still remembered")
		}
		pvs := w.pvs()
		if pvs["pvc-uid-1-2"] == nil || pvs[savedName] != nil {
			t.Errorf("PersistentVolumes: %v, want that of the second claim", pvs)
		}
	})
}
