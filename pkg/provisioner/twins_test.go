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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// twin is another PersistentVolume of the volume of released().
func twin(phase v1.PersistentVolumePhase, policy v1.PersistentVolumeReclaimPolicy, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	all := append([]func(*v1.PersistentVolume){csiVolume(ourName, "h"), claimed("uid-2"), withFinalizers(Finalizer)}, change...)
	return pv("volume-2", phase, policy, ourName, all...)
}

// liveTwin makes the server answer reads of volume-2 with what informers do not show.
func liveTwin(change func(*v1.PersistentVolume)) func(*fake.Clientset) {
	return func(c *fake.Clientset) {
		c.PrependReactor("get", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			name := action.(clienttesting.GetAction).GetName()
			obj, err := c.Tracker().Get(action.GetResource(), "", name)
			if err != nil || name != "volume-2" {
				return true, obj, err
			}
			v := obj.(*v1.PersistentVolume).DeepCopy()
			change(v)
			return true, v, nil
		})
	}
}

// TestVolumeOfAnotherPersistentVolumeIsNotDeleted: whatever speaks for a volume
// keeps it, and the event says by what and how to go on. It is deleted at once when
// the last that speaks for it has gone.
func TestVolumeOfAnotherPersistentVolumeIsNotDeleted(t *testing.T) {
	claim2 := claim("claim-1", "uid-2", "class-1", otherName, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "volume-2" })
	for name, c := range map[string]struct {
		twin  *v1.PersistentVolume
		also  []runtime.Object
		live  func(*v1.PersistentVolume)
		wants string
	}{
		"bound":              {twin: twin(v1.VolumeBound, del), wants: "is Bound with the policy Delete"},
		"bound, by hand":     {twin: twin(v1.VolumeBound, retain, func(v *v1.PersistentVolume) { v.Annotations, v.Finalizers = nil, nil }), wants: "is Bound with the policy Retain"},
		"available":          {twin: twin(v1.VolumeAvailable, del), wants: "is Available"},
		"pending":            {twin: twin(v1.VolumePending, del), wants: "is Pending"},
		"failed":             {twin: twin(v1.VolumeFailed, del), wants: "is Failed"},
		"retained":           {twin: twin(v1.VolumeReleased, retain), wants: "is Released with the policy Retain"},
		"its claim is there": {twin: twin(v1.VolumeReleased, del), also: []runtime.Object{claim2}, wants: "has the claim default/claim-1"},
		"of another provisioner": {twin: twin(v1.VolumeReleased, del, func(v *v1.PersistentVolume) {
			v.Annotations[AnnotationProvisionedBy] = otherName
		}), wants: "is Released"},
		"taken out of our hands":       {twin: twin(v1.VolumeReleased, del, withFinalizers("someone/else"), terminating), wants: "is Released"},
		"bound again, not heard of":    {twin: twin(v1.VolumeReleased, del), live: func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeBound }, wants: "is Bound"},
		"retained now, not heard of":   {twin: twin(v1.VolumeReleased, del), live: func(v *v1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = retain }, wants: "the policy Retain"},
		"of another driver":            {twin: twin(v1.VolumeBound, del, csiVolume(otherName, "h"))},
		"of another volume":            {twin: twin(v1.VolumeBound, del, csiVolume(ourName, "other"))},
		"gone, not heard of":           {twin: twin(v1.VolumeReleased, del), live: func(v *v1.PersistentVolume) { v.UID = "another" }},
		"another claim of its name":    {twin: twin(v1.VolumeReleased, del, claimed("uid-3")), also: []runtime.Object{claim2}},
		"is to be deleted in its turn": {twin: twin(v1.VolumeReleased, del)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// One worker: who comes first is known, and every refusal is one of ours.
				s := setup{objects: append(c.also, released(), c.twin), noResync: true, exponential: true, options: []Option{WithWorkers(1)}}
				if c.live != nil {
					s.before = liveTwin(c.live)
				}
				w := newWorld(t, s)
				w.rest(5)
				_, removed := w.maker.calls()
				if c.wants == "" {
					if removed != 1 || w.pvs()["volume-1"] != nil {
						t.Errorf("deleted %d times, PersistentVolumes %v", removed, w.pvs())
					}
					return
				}
				var told []string
				for _, e := range w.told() {
					if strings.Contains(e, "PersistentVolume volume-2 stands for it too") {
						told = append(told, e)
					}
				}
				if removed != 0 || len(told) != 1 || !strings.HasPrefix(told[0], "Warning VolumeDeleteRefused The volume is not deleted") ||
					!strings.Contains(told[0], c.wants) || !strings.Contains(told[0], "PersistentVolume volume-1 alone, set its persistentVolumeReclaimPolicy to Retain and delete it") {
					t.Errorf("deleted %d times, events %q", removed, told)
				}
				if name == "its claim is there" {
					w.api.dropClaim("claim-1")
				} else {
					w.api.editPV("volume-2", func(v *v1.PersistentVolume) { terminating(v); v.Finalizers = nil })
				}
				w.rest(1)
				if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
					t.Errorf("nobody speaks for it any more: deleted %d times, %d left", removed, len(w.pvs()))
				}
				nothingRemembered(t, w)
			})
		})
	}
}

// TestGivingUpOneOfTwoPersistentVolumes: what the event advises is done by us, and
// calls the driver for nothing.
func TestGivingUpOneOfTwoPersistentVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released(), twin(v1.VolumeBound, del)}, noResync: true})
		w.rest(1)
		w.api.editPV("volume-1", func(v *v1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = retain })
		w.rest(1)
		w.api.dropPV("volume-1")
		w.rest(1)
		if _, removed := w.maker.calls(); removed != 0 || len(w.pvs()) != 1 || w.pvs()["volume-2"] == nil {
			t.Errorf("deleted %d times, left %v", removed, w.pvs())
		}
		nothingRemembered(t, w)
	})
}

// TestTheLastOfTwoTakesTheVolume: once the other says that it goes too, both go.
func TestTheLastOfTwoTakesTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released(), twin(v1.VolumeBound, del)}, noResync: true})
		w.rest(1)
		if _, removed := w.maker.calls(); removed != 0 {
			t.Errorf("deleted %d times while the other is bound", removed)
		}
		w.api.release("volume-2")
		w.rest(1)
		if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("deleted %d times, left %v", removed, w.pvs())
		}
		nothingRemembered(t, w)
	})
}

// TestManyReleasedPersistentVolumesOfOneVolume take one DeleteVolume, also where it
// fails at first, or takes its time, and all of them go.
func TestManyReleasedPersistentVolumesOfOneVolume(t *testing.T) {
	for name, c := range map[string]struct {
		takes    time.Duration
		failures int32
	}{
		"at once": {}, "slowly": {takes: 10 * time.Second}, "after failures": {failures: 3}, "after slow failures": {takes: time.Second, failures: 3},
	} {
		for _, workers := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d workers", name, workers), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var objects []runtime.Object
					for i := range 3 {
						objects = append(objects, released(claimed(types.UID(fmt.Sprint("gone-", i))), func(v *v1.PersistentVolume) {
							v.Name, v.UID = fmt.Sprint("volume-", i), types.UID(fmt.Sprint("uid-volume-", i))
						}))
					}
					var now, worked, failed atomic.Int32
					m := &maker{remove: func(*v1.PersistentVolume) error {
						if now.Add(1) > 1 {
							t.Error("two calls at once for one volume")
						}
						defer now.Add(-1)
						time.Sleep(c.takes)
						if failed.Add(1) <= c.failures {
							return errors.New("fake error")
						}
						worked.Add(1)
						return nil
					}}
					w := newWorld(t, setup{objects: objects, maker: m, noResync: true, exponential: true, options: []Option{WithWorkers(workers)}})
					time.Sleep(lookAgain - time.Second) // before anything is polled
					synctest.Wait()
					if _, removed := m.calls(); worked.Load() != 1 || removed != int(c.failures)+1 || len(w.pvs()) != 0 {
						t.Errorf("deleted %d times in %d calls, left %v", worked.Load(), removed, w.pvs())
					}
					nothingRemembered(t, w)
				})
			})
		}
	}
}

// TestTwinsThatCannotBeDeletedDoNotHurryOneAnother: who fails backs off, whoever
// else waits for the volume.
func TestTwinsThatCannotBeDeletedDoNotHurryOneAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := bad()
		slowly := m.remove
		m.remove = func(v *v1.PersistentVolume) error {
			time.Sleep(10 * time.Millisecond)
			return slowly(v)
		}
		w := newWorld(t, setup{
			objects: []runtime.Object{released(), twin(v1.VolumeReleased, del)}, maker: m, noResync: true, exponential: true,
			options: []Option{WithRetryInterval(time.Second, time.Minute)},
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		// Each: 1 s, 2 s, 4 s and so on to 1 min, and all of them a little longer or shorter.
		if _, removed := w.maker.calls(); removed < 20 || removed > 36 {
			t.Errorf("%d calls in ten minutes", removed)
		}
	})
}

// TestTwinCannotBeRead: not knowing is no reason to delete.
func TestTwinCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var readable atomic.Bool
		w := newWorld(t, setup{objects: []runtime.Object{released(), twin(v1.VolumeReleased, del)}, options: []Option{WithWorkers(1)}, before: func(c *fake.Clientset) {
			c.PrependReactor("get", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if readable.Load() || action.(clienttesting.GetAction).GetName() != "volume-2" {
					return false, nil, nil
				}
				return true, nil, errFake
			})
		}})
		w.rest(5)
		if _, removed := w.maker.calls(); removed != 0 {
			t.Errorf("deleted %d times", removed)
		}
		readable.Store(true)
		w.rest(20)
		if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("it can be read again: deleted %d times, left %v", removed, w.pvs())
		}
	})
}

// TestTwinOfAnotherNode: what is not ours to delete speaks for its volume.
func TestTwinOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released(), twin(v1.VolumeReleased, del)}, noResync: true, wrap: func(m *maker) Provisioner {
			return &sharing{maker: m, guard: func(v *v1.PersistentVolume) bool { return v.Name == "volume-1" }}
		}})
		w.rest(5)
		if _, removed := w.maker.calls(); removed != 0 || len(w.pvs()) != 2 {
			t.Errorf("deleted %d times, left %v", removed, w.pvs())
		}
	})
}

// TestVolumeThatWentWhileItsPersistentVolumeWasRead: what another deleted between
// our look and our turn is not deleted again.
func TestVolumeThatWentWhileItsPersistentVolumeWasRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{noResync: true})
		w.rest(1)
		mine := released()
		w.ctrl.ops.setDeleted(mine.UID, false)
		done, err := w.ctrl.deleteOnce(t.Context(), mine)
		if _, removed := w.maker.calls(); !done || err != nil || removed != 0 {
			t.Errorf("done %v, %v; deleted %d times", done, err, removed)
		}
	})
}
