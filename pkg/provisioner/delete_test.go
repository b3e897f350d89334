package provisioner

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const (
	del    = v1.PersistentVolumeReclaimDelete
	retain = v1.PersistentVolumeReclaimRetain
)

// released is a PersistentVolume whose claim has gone.
func released(change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	all := append([]func(*v1.PersistentVolume){csiVolume(ourName, "h"), claimed("uid-1-1"), withFinalizers(Finalizer)}, change...)
	return pv("volume-1", v1.VolumeReleased, del, ourName, all...)
}

// answersWith makes the server answer reads of volume-1 with what informers do
// not show.
func answersWith(change func(*v1.PersistentVolume)) func(*fake.Clientset) {
	return func(c *fake.Clientset) {
		c.PrependReactor("get", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			obj, err := c.Tracker().Get(action.GetResource(), "", action.(clienttesting.GetAction).GetName())
			if err != nil {
				return true, nil, err
			}
			v := obj.(*v1.PersistentVolume).DeepCopy()
			change(v)
			return true, v, nil
		})
	}
}

// TestDeletionReadsTheServer: an informer that lags costs no data.
func TestDeletionReadsTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		live func(*v1.PersistentVolume)
		want int
	}{
		"as the informer says":    {live: func(*v1.PersistentVolume) {}, want: 1},
		"bound again":             {live: func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeBound }},
		"to be retained now":      {live: func(v *v1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = retain }},
		"another one of its name": {live: func(v *v1.PersistentVolume) { v.UID = "another" }},
		"another's":               {live: func(v *v1.PersistentVolume) { v.Annotations[AnnotationProvisionedBy] = otherName }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{objects: []runtime.Object{released()}, before: answersWith(c.live)})
				w.rest(5)
				if _, removed := w.maker.calls(); removed != c.want {
					t.Errorf("deleted %d times, want %d", removed, c.want)
				}
			})
		})
	}
}

// TestServerCannotBeRead: not knowing is no reason to delete.
func TestServerCannotBeRead(t *testing.T) {
	for _, res := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{objects: []runtime.Object{released()}, before: failing("get", res, 3)})
			w.rest(2)
			if _, removed := w.maker.calls(); removed != 0 {
				t.Errorf("%s cannot be read, and the volume is deleted", res)
			}
			w.rest(20)
			if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
				t.Errorf("%s can be read again: deleted %d times, %d left", res, removed, len(w.pvs()))
			}
		})
	}
}

// TestClaimOfReleasedVolumeExists (external-provisioner 507): one that was
// Released since kube-controller-manager had not seen its claim yet is about to be
// bound. It goes when its claim goes.
func TestClaimOfReleasedVolumeExists(t *testing.T) {
	for name, c := range map[string]struct {
		volumeName string
		uid        string
		refused    bool
	}{
		"not bound yet":         {uid: "uid-1-1", refused: true},
		"bound to it":           {uid: "uid-1-1", volumeName: "volume-1", refused: true},
		"bound to another":      {uid: "uid-1-1", volumeName: "other"},
		"another one's by name": {uid: "other"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bound := claim("claim-1", c.uid, "class-1", otherName, func(cl *v1.PersistentVolumeClaim) { cl.Spec.VolumeName = c.volumeName })
				volume := released()
				if c.volumeName == "" {
					volume.Name = savedName
				}
				w := newWorld(t, setup{objects: []runtime.Object{bound, volume}, noResync: true, exponential: true})
				w.rest(5)
				_, removed := w.maker.calls()
				events := strings.Join(w.told(), "\n")
				if (removed == 0) != c.refused || strings.Count(events, ReasonVolumeDeleteRefused) != map[bool]int{true: 1}[c.refused] {
					t.Errorf("deleted %d times, events %q", removed, events)
				}
				w.api.dropClaim("claim-1")
				w.rest(1)
				if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
					t.Errorf("the claim has gone: deleted %d times, %d left", removed, len(w.pvs()))
				}
				nothingRemembered(t, w)
			})
		})
	}
}

// TestRefusedIsToldOnce: waiting is no news.
func TestRefusedIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{claim("claim-1", "uid-1-1", "class-1", otherName), released()}})
		w.rest(100)
		if events := w.told(); len(events) != 1 {
			t.Errorf("events: %q", events)
		}
	})
}

// TestDeleteVolumeOnce (external-provisioner 1235): what fails after the volume is
// deleted does not delete it again, and neither do the events of it.
func TestDeleteVolumeOnce(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*fake.Clientset)
		// event is that of the failure.
		event string
	}{
		"nothing fails":    {before: func(*fake.Clientset) {}},
		"delete fails":     {before: failing("delete", "persistentvolumes", 3), event: "deleting PersistentVolume volume-1, whose volume is deleted: fake error"},
		"patch fails":      {before: failing("patch", "persistentvolumes", 3), event: "changing the finalizers of PersistentVolume volume-1: fake error"},
		"watch is deaf":    {before: deaf("persistentvolumes")},
		"patch forbidden":  {before: forbidden("patch", "persistentvolumes", 3), event: "allow patch of persistentvolumes"},
		"delete forbidden": {before: forbidden("delete", "persistentvolumes", 3), event: "allow delete of persistentvolumes"},
	} {
		for _, noResync := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, resync %t", name, !noResync), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setup{objects: []runtime.Object{released()}, before: c.before, noResync: noResync, exponential: true})
					w.rest(100)
					if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
						t.Errorf("deleted %d times, %d left", removed, len(w.pvs()))
					}
					events := strings.Join(w.told(), "\n")
					if !strings.Contains(events, c.event) || (events != "") != (c.event != "") {
						t.Errorf("events: %q, want %q", events, c.event)
					}
					if name != "watch is deaf" {
						nothingRemembered(t, w)
					}
				})
			})
		}
	}
}

// forbidden makes a verb on a resource be refused so many times; 0: always.
func forbidden(verb, res string, times int) func(*fake.Clientset) {
	return func(c *fake.Clientset) {
		n := 0
		c.PrependReactor(verb, res, func(clienttesting.Action) (bool, runtime.Object, error) {
			if n++; times > 0 && n > times {
				return false, nil, nil
			}
			return true, nil, apierrors.NewForbidden(v1.Resource(res), "", errors.New("not allowed"))
		})
	}
}

// TestRestartAfterTheFinalizerIsOff: the process ended between taking its
// finalizer off and deleting the object. The next one ends it.
func TestRestartAfterTheFinalizerIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released(withFinalizers())}})
		w.rest(2)
		if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("deleted %d times, %d left", removed, len(w.pvs()))
		}
	})
}

// TestDeleteFails: told each time, tried again, and the object stays as it was.
func TestDeleteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bad()
		w := newWorld(t, setup{objects: []runtime.Object{released()}, maker: m})
		w.rest(5)
		if v := w.pvs()["volume-1"]; v == nil || !hasFinalizer(v) || v.DeletionTimestamp != nil {
			t.Errorf("PersistentVolume = %+v", v)
		}
		events := w.told()
		if _, removed := m.calls(); removed < 2 || len(events) != removed || events[0] != "Warning VolumeFailedDelete fake error" {
			t.Errorf("%d calls, events %q", removed, events)
		}
		m.mends()
		w.rest(5)
		if len(w.pvs()) != 0 {
			t.Error("not deleted once it can be")
		}
		nothingRemembered(t, w)
	})
}

// TestDeleteIsIgnored: no event, and nothing is taken away.
func TestDeleteIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{remove: func(*v1.PersistentVolume) error {
			return fmt.Errorf("here: %w", &IgnoredError{Reason: "it is another's"})
		}}
		w := newWorld(t, setup{objects: []runtime.Object{released()}, maker: m})
		w.rest(5)
		if v := w.pvs()["volume-1"]; v == nil || !hasFinalizer(v) {
			t.Errorf("PersistentVolume = %+v", v)
		}
		if events := w.told(); len(events) != 0 {
			t.Errorf("events: %q", events)
		}
	})
}

// TestDriverSaysInUse: the deletion waits without a warning, and is told once.
func TestDriverSaysInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{remove: func(*v1.PersistentVolume) error { return fmt.Errorf("here: %w", &InUseError{Reason: "on node n"}) }}
		w := newWorld(t, setup{objects: []runtime.Object{released()}, maker: m, noResync: true})
		w.rest(5)
		if events := w.told(); len(events) != 1 || !strings.HasPrefix(events[0], "Normal VolumeDelete ") || !strings.Contains(events[0], "on node n") {
			t.Errorf("events: %q", events)
		}
		m.mends()
		time.Sleep(lookAgain)
		w.rest(1)
		if len(w.pvs()) != 0 {
			t.Error("not deleted once it can be")
		}
		nothingRemembered(t, w)
	})
}

// TestTerminatingVolume: what was deleted by hand goes the same way, in any order
// with its claim (sig-storage-lib 42, 87; KEP-2644).
func TestTerminatingVolume(t *testing.T) {
	t.Run("Released and Terminating is finalised", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{objects: []runtime.Object{released(terminating)}})
			w.rest(2)
			if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
				t.Errorf("deleted %d times, %d left", removed, len(w.pvs()))
			}
		})
	})
	t.Run("deleted before its claim", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{objects: oneClaim(), noResync: true})
			w.rest(1)
			w.api.bind("claim-1", savedName)
			w.api.dropPV(savedName)
			w.rest(1)
			if _, removed := w.maker.calls(); removed != 0 || len(w.pvs()) != 1 {
				t.Errorf("bound: deleted %d times, %d left", removed, len(w.pvs()))
			}
			w.api.dropClaim("claim-1")
			w.api.release(savedName)
			w.rest(1)
			if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
				t.Errorf("released: deleted %d times, %d left", removed, len(w.pvs()))
			}
			nothingRemembered(t, w)
		})
	})
	t.Run("gone while its volume is deleted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var w *world
			ready := make(chan struct{})
			m := &maker{remove: func(*v1.PersistentVolume) error {
				<-ready
				w.api.editPV("volume-1", func(v *v1.PersistentVolume) { v.Finalizers = nil })
				w.api.dropPV("volume-1")
				time.Sleep(time.Second)
				return nil
			}}
			w = newWorld(t, setup{objects: []runtime.Object{released()}, maker: m, noResync: true})
			close(ready)
			w.rest(30)
			nothingRemembered(t, w)
		})
	})
}

// TestVolumeWithoutClaimRef (aws-ebs 1396): it is deleted as any other.
func TestVolumeWithoutClaimRef(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released(func(v *v1.PersistentVolume) { v.Spec.ClaimRef = nil })}})
		w.rest(2)
		if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("deleted %d times, %d left", removed, len(w.pvs()))
		}
	})
}

// TestWholeWayOfAVolume: the whole way of a volume, from its claim to its end, leaves
// nothing behind, and calls the driver once each way.
func TestWholeWayOfAVolume(t *testing.T) {
	for name, noResync := range map[string]bool{"resync": false, "no resync": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var changes atomic.Int32
				w := newWorld(t, setup{objects: oneClaim(), noResync: noResync, maker: csiMaker("h"), options: []Option{
					WithOnChange(func(*v1.PersistentVolume) { changes.Add(1) }),
				}})
				w.rest(25)
				w.api.bind("claim-1", savedName)
				w.rest(25)
				if w.ctrl.ops.savedAs("uid-1-1") != "" {
					t.Error("still remembered as saved once it is bound")
				}
				w.api.dropClaim("claim-1")
				w.rest(25)
				if _, removed := w.maker.calls(); removed != 0 {
					t.Error("deleted before it is Released")
				}
				w.api.release(savedName)
				w.rest(25)
				if made, removed := w.maker.calls(); made != 1 || removed != 1 || len(w.pvs()) != 0 || changes.Load() != 2 {
					t.Errorf("made %d, deleted %d, left %d, told of %d changes", made, removed, len(w.pvs()), changes.Load())
				}
				nothingRemembered(t, w)
			})
		})
	}
}

// TestFinalizerComesBeforeTheObjectIsDeleted: another writer, such as the old
// leader, puts our finalizer on after it was looked for. It comes off again.
func TestFinalizerComesBeforeTheObjectIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w *world
		first := true
		w = newWorld(t, setup{noResync: true, before: func(c *fake.Clientset) {
			c.PrependReactor("delete", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
				if first {
					first = false
					w.api.editPV("volume-1", func(v *v1.PersistentVolume) { v.Finalizers = []string{Finalizer} })
				}
				return false, nil, nil
			})
		}})
		w.rest(1)
		w.api.add(released(withFinalizers()))
		w.rest(5)
		if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("deleted %d times, left %v", removed, len(w.pvs()))
		}
		nothingRemembered(t, w)
	})
}

// TestAnotherOneOfItsNameIsNotDeleted: the object was replaced after its volume was
// deleted, and the one that has its name now stands for something else.
func TestAnotherOneOfItsNameIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replaced := func(c *fake.Clientset) {
			done := false
			c.PrependReactor("delete", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if done {
					return false, nil, nil
				}
				done = true
				other := released(withFinalizers())
				other.UID, other.ResourceVersion, other.Status.Phase = "another", "1000", v1.VolumeBound
				return false, nil, c.Tracker().Update(action.GetResource(), other, "")
			})
		}
		w := newWorld(t, setup{objects: []runtime.Object{released()}, before: replaced})
		w.rest(5)
		if left := w.pvs()["volume-1"]; left == nil || left.UID != "another" {
			t.Errorf("left %v, want the one that took the name", left)
		}
	})
}

// TestServerIsToldOnceToDelete: an informer that lags makes no second request.
func TestServerIsToldOnceToDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released()}, before: deaf("persistentvolumes")})
		w.rest(100)
		writes := map[string]int{}
		for _, a := range w.client.Actions() {
			if verb := a.GetVerb(); a.GetResource().Resource == "persistentvolumes" && (verb == "patch" || verb == "delete") {
				writes[verb]++
			}
		}
		if writes["patch"] != 1 || writes["delete"] != 1 {
			t.Errorf("requests: %v, want one of each", writes)
		}
	})
}
