package provisioner

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestFinalizersOfOthers (external-provisioner 1217): somebody else changes the
// finalizers between what we read and what we write. Nobody's change is lost.
func TestFinalizersOfOthers(t *testing.T) {
	const attacher = "external-attacher/foo"
	bound := func(finalizers ...string) *v1.PersistentVolume {
		return pv("volume-1", v1.VolumeBound, del, ourName, csiVolume(ourName, "h"), withFinalizers(finalizers...))
	}
	retained := func(finalizers ...string) *v1.PersistentVolume {
		v := bound(finalizers...)
		v.Spec.PersistentVolumeReclaimPolicy = retain
		return v
	}
	add := func(name string) func(*v1.PersistentVolume) {
		return func(v *v1.PersistentVolume) { v.Finalizers = append([]string{name}, v.Finalizers...) }
	}
	drop := func(name string) func(*v1.PersistentVolume) {
		return func(v *v1.PersistentVolume) {
			v.Finalizers = slices.DeleteFunc(v.Finalizers, func(f string) bool { return f == name })
		}
	}
	for name, c := range map[string]struct {
		pv   *v1.PersistentVolume
		race func(*v1.PersistentVolume)
		want []string
	}{
		"ours is added to none, another came":      {pv: bound(), race: add(attacher), want: []string{attacher, Finalizer}},
		"ours is added to some, another came":      {pv: bound("a/b"), race: add(attacher), want: []string{attacher, "a/b", Finalizer}},
		"ours is added to some, another went":      {pv: bound("a/b", attacher), race: drop(attacher), want: []string{"a/b", Finalizer}},
		"ours is added to one, which went":         {pv: bound(attacher), race: drop(attacher), want: []string{Finalizer}},
		"ours is added, it came meanwhile":         {pv: bound(), race: add(Finalizer), want: []string{Finalizer}},
		"ours is taken, one before it went":        {pv: retained(attacher, Finalizer, "a/b"), race: drop(attacher), want: []string{"a/b"}},
		"ours is taken, one came before it":        {pv: retained(Finalizer, "a/b"), race: add(attacher), want: []string{attacher, "a/b"}},
		"ours is taken, it went meanwhile":         {pv: retained(Finalizer, "a/b"), race: drop(Finalizer), want: []string{"a/b"}},
		"ours is taken, all went meanwhile":        {pv: retained(attacher, Finalizer), race: func(v *v1.PersistentVolume) { v.Finalizers = nil }},
		"another one has the name now: left alone": {pv: bound("a/b"), race: func(v *v1.PersistentVolume) { v.UID, v.Status.Phase = "another", v1.VolumePending }, want: []string{"a/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{noResync: true, exponential: true})
				w.rest(1)
				w.api.mu.Lock()
				w.api.between = func() { w.api.editPV("volume-1", c.race) }
				w.api.mu.Unlock()
				w.api.add(c.pv)
				w.rest(5)
				if got := w.pvs()["volume-1"].Finalizers; !slices.Equal(got, c.want) {
					t.Errorf("finalizers %v, want %v", got, c.want)
				}
				if events := w.told(); len(events) != 0 {
					t.Errorf("events: %q", events)
				}
			})
		})
	}
}

// TestAttacherStripsItsFinalizerMeanwhile (external-provisioner 1217): the object
// goes all the same.
func TestAttacherStripsItsFinalizerMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{noResync: true, exponential: true})
		w.rest(1)
		w.api.mu.Lock()
		w.api.between = func() {
			w.api.editPV("volume-1", func(v *v1.PersistentVolume) { v.Finalizers = v.Finalizers[1:] })
		}
		w.api.mu.Unlock()
		w.api.add(released(withFinalizers("external-attacher/foo", Finalizer)))
		w.rest(5)
		if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("deleted %d times, left %v", removed, w.pvs())
		}
		nothingRemembered(t, w)
	})
}

// TestPatchIsForbidden (external-provisioner 1277, 1255): the event says what to
// allow, and once that is allowed the object goes.
func TestPatchIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: []runtime.Object{released()}, noResync: true, exponential: true, before: forbidden("patch", "persistentvolumes", 4)})
		w.rest(20)
		events := w.told()
		if len(events) == 0 || !strings.HasPrefix(events[0], "Warning VolumeFailedDelete ") || !strings.Contains(events[0], "allow patch of persistentvolumes") {
			t.Errorf("events: %q", events)
		}
		if w.pvs()["volume-1"] == nil {
			t.Error("it has gone with our finalizer on")
		}
		w.rest(200)
		if _, removed := w.maker.calls(); removed != 1 || len(w.pvs()) != 0 {
			t.Errorf("deleted %d times, %d left", removed, len(w.pvs()))
		}
	})
}

// TestFinalizersChangeWithoutEnd: it is given up for this time, and told.
func TestFinalizersChangeWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{noResync: true, exponential: true})
		w.rest(1)
		n := 0
		var again func()
		again = func() {
			n++
			w.api.editPV("volume-1", func(v *v1.PersistentVolume) { v.Finalizers = []string{"a/" + strings.Repeat("b", n)} })
			if n < patchTries {
				w.api.mu.Lock()
				w.api.between = again
				w.api.mu.Unlock()
			}
		}
		w.api.mu.Lock()
		w.api.between = again
		w.api.mu.Unlock()
		w.api.add(pv("volume-1", v1.VolumeBound, del, ourName, csiVolume(ourName, "h")))
		w.rest(2)
		if events := w.told(); n != patchTries || len(events) != 1 {
			t.Errorf("%d changes, events %q", n, events)
		}
		w.rest(20)
		if !hasFinalizer(w.pvs()["volume-1"]) {
			t.Error("never added")
		}
	})
}
