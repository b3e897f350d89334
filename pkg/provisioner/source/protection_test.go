package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
)

const minute = time.Minute

// bind is what kube-controller-manager does once the volume is there.
func (r *rig) bind(name string) {
	r.api.change(claimID(name), func(u *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(u.Object, "pv-"+name, "spec", "volumeName")
		_ = unstructured.SetNestedField(u.Object, string(v1.ClaimBound), "status", "phase")
	})
}

func (r *rig) protect(t *testing.T, ref Ref, user string) {
	t.Helper()
	if err := r.p.Protect(r.ctx, ref, claimUID(user)); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotIsProtectedWhileAVolumeIsMadeOfIt(t *testing.T) {
	snap := snapshot()
	snap.Finalizers = []string{"first", "second"}
	r := newRig(snap, content(), restore("a"))
	r.run(t, func(t *testing.T) {
		r.protect(t, snapRef, "a")
		r.settle(11 * minute) // two sweeps
		r.wantProtected(t, true, "while it is made")
		r.bind("a")
		r.settle(0)
		r.wantProtected(t, true, "bound, but not released")
		r.p.Release(snapRef, claimUID("a"))
		r.settle(0)
		r.wantProtected(t, false, "released")
		if got := r.api.get(snapID).GetFinalizers(); !slices.Equal(got, []string{"first", "second"}) {
			t.Errorf("the finalizers are %v", got)
		}
		if n := r.api.count("PUT volumesnapshots"); n != 2 {
			t.Errorf("%d updates, want 2", n)
		}
	})
}

func TestReleasedSnapshotIsFreedOnceItsClaimIsBound(t *testing.T) {
	r := newRig(snapshot(), content(), restore("a"))
	r.run(t, func(t *testing.T) {
		r.protect(t, snapRef, "a")
		r.p.Release(snapRef, claimUID("a"))
		r.settle(minute)
		r.wantProtected(t, true, "the claim still waits")
		r.bind("a")
		r.settle(0)
		r.wantProtected(t, false, "bound")
	})
}

// Of many volumes of one snapshot the last one counts.
func TestSnapshotIsProtectedForTheLastOfMany(t *testing.T) {
	var objs []runtime.Object
	for i := range 20 {
		objs = append(objs, restore(fmt.Sprint(i)))
	}
	r := newRig(append(objs, snapshot(), content())...)
	r.run(t, func(t *testing.T) {
		failed := make(chan error, 20)
		for i := range 20 {
			go func() { failed <- r.p.Protect(r.ctx, snapRef, claimUID(fmt.Sprint(i))) }()
		}
		for range 20 {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
		for i := range 20 {
			r.wantProtected(t, true, "before the last")
			r.bind(fmt.Sprint(i))
			r.p.Release(snapRef, claimUID(fmt.Sprint(i)))
			r.settle(minute)
		}
		r.wantProtected(t, false, "after the last")
	})
}

// T9: the claim names its source in dataSourceRef alone, with or without a namespace.
func TestClaimNeedsWhatDataSourceRefAloneNames(t *testing.T) {
	for _, namespace := range []*string{nil, ptr("ns")} {
		for _, where := range []string{"ns", "elsewhere"} {
			claim := restore("a")
			claim.Namespace = where
			claim.Spec.DataSource, claim.Spec.DataSourceRef.Namespace = nil, namespace
			needed := where == "ns" || namespace != nil
			snap := snapshot()
			snap.Finalizers = []string{SnapshotFinalizer}
			r := newRig(snap, content(), claim)
			r.run(t, func(t *testing.T) {
				r.settle(6 * minute)
				r.wantProtected(t, needed, fmt.Sprintf("a claim in %s, dataSourceRef.namespace %v", where, namespace))
				r.api.remove(id{"persistentvolumeclaims", where, "a"})
				r.settle(0)
				r.wantProtected(t, false, "the claim is gone")
			})
		}
	}
}

// base1507: killed after the finalizer was put on; the claim is deleted meanwhile.
func TestFinalizerLeftByAKilledProcessIsSweptAway(t *testing.T) {
	r := newRig(snapshot(), content(), restore("a"))
	r.run(t, func(t *testing.T) {
		r.protect(t, snapRef, "a")
		r.stop()
		r.api.remove(claimID("a"))
		r.start()
		r.settle(5 * minute)
		r.wantProtected(t, false, "an interval later")
		r.api.remove(snapID)
		if r.api.get(snapID) != nil {
			t.Error("the snapshot cannot be deleted")
		}
	})
}

// The same while the process runs on: who waits for nothing is told by the claim.
func TestFinalizerGoesWithTheClaim(t *testing.T) {
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(snap, content(), restore("a"))
	r.config = func(cfg *ProtectionConfig) { cfg.SweepInterval = 0 }
	r.run(t, func(t *testing.T) {
		r.wantProtected(t, true, "the claim waits")
		r.api.remove(claimID("a"))
		r.settle(0)
		r.wantProtected(t, false, "the claim is gone")
	})
}

func TestNothingIsSweptWithoutAnInterval(t *testing.T) {
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(snap, content())
	r.config = func(cfg *ProtectionConfig) { cfg.SweepInterval = 0 }
	r.run(t, func(t *testing.T) {
		r.settle(time.Hour)
		r.wantProtected(t, true, "after an hour")
		if n := r.api.count("LIST volumesnapshots"); n != 0 {
			t.Errorf("%d lists", n)
		}
	})
}

// base1449, T8: snapshot and claim are deleted while the volume is made; sweeps
// come and go, and so does a process.
func TestIntentOfADeletedClaimKeepsTheSnapshot(t *testing.T) {
	r := newRig(snapshot(), content(), restore("a"))
	r.run(t, func(t *testing.T) {
		r.protect(t, snapRef, "a")
		r.intent(snapRef, 1)
		r.api.remove(claimID("a"))
		r.api.remove(snapID)
		r.settle(11 * minute)
		r.wantProtected(t, true, "in progress")
		r.restart()
		r.settle(11 * minute)
		r.wantProtected(t, true, "in progress, by the journal alone")
		r.intent(snapRef, -1)
		r.p.Release(snapRef, claimUID("a"))
		r.settle(0)
		if r.api.get(snapID) != nil {
			t.Error("the snapshot is still there")
		}
	})
}

// Nobody tells of the intent's end.
func TestIntentThatEndsUntoldIsNoticed(t *testing.T) {
	src := sourceClaim()
	terminating(&src.ObjectMeta, CloneFinalizer)
	r := newRig(src, sourceVolume())
	r.config = func(cfg *ProtectionConfig) { cfg.SweepInterval = 0 }
	r.intent(srcRef, 1)
	r.run(t, func(t *testing.T) {
		r.settle(10 * minute)
		if !r.has(srcID, CloneFinalizer) {
			t.Error("an intent needs it")
		}
		r.intent(srcRef, -1)
		r.settle(recheckInterval)
		if r.has(srcID, CloneFinalizer) {
			t.Error("nobody needs it")
		}
	})
}

// An intent for an older object of the name says nothing of the newer one.
func TestIntentIsForOneObject(t *testing.T) {
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(snap, content())
	r.intent(Ref{Snapshot, "ns", "snap", "older"}, 1)
	r.run(t, func(t *testing.T) {
		r.wantProtected(t, false, "after the first sweep")
	})
}

// The finalizer's name is every driver's.
func TestSourcesOfOtherDriversAreLeftAlone(t *testing.T) {
	snap, con := snapshot(), content()
	snap.Finalizers, con.Spec.Driver = []string{SnapshotFinalizer}, otherDriver
	src, pv := sourceClaim(), sourceVolume()
	terminating(&src.ObjectMeta, CloneFinalizer)
	pv.Spec.CSI.Driver = otherDriver
	r := newRig(snap, con, src, pv)
	r.run(t, func(t *testing.T) {
		r.settle(time.Hour)
		if !r.protected() || !r.has(srcID, CloneFinalizer) {
			t.Error("a finalizer of another driver's source is gone")
		}
	})
}

func TestSnapshotWithoutContentIsFreed(t *testing.T) {
	for name, unbind := range map[string]bool{"content gone": false, "never bound": true} {
		snap := snapshot()
		snap.Finalizers = []string{SnapshotFinalizer}
		if unbind {
			snap.Status = nil
		}
		r := newRig(snap)
		r.run(t, func(t *testing.T) { r.wantProtected(t, false, name) })
	}
}

func TestProtectRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *rig)
		says   string
	}{
		"made anew": {func(r *rig) { r.api.change(snapID, func(u *unstructured.Unstructured) { u.SetUID("newer") }) }, "made anew"},
		"being deleted": {func(r *rig) {
			r.api.change(snapID, func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"other"}) })
			r.api.remove(snapID)
		}, "being deleted"},
		"gone":            {func(r *rig) { r.api.remove(snapID) }, "does not exist"},
		"not the leader":  {func(r *rig) { r.lead(false) }, "leader"},
		"not to be read":  {func(r *rig) { r.fault(forbid("GET volumesnapshots")) }, "grant"},
		"API server away": {func(r *rig) { r.fault(unavailable("PUT volumesnapshots")) }, "updating the finalizers of VolumeSnapshot ns/snap"},
		"always changing": {func(r *rig) {
			r.fault(func(method, resource string) error {
				if method == "PUT" {
					return apierrors.NewConflict(schema.GroupResource{Resource: resource}, "snap", errors.New("modified"))
				}
				return nil
			})
		}, "5 times"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(snapshot(), content())
			r.run(t, func(t *testing.T) {
				c.change(r)
				err := r.p.Protect(r.ctx, snapRef, "u")
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want one that says %q", err, c.says)
				}
				r.settle(0)
				if _, free := r.p.holds.beginRemoval(snapRef.key()); !free {
					t.Error("it is still held")
				}
			})
		})
	}
}

func TestSnapshotBeingDeletedIsProtectedFurther(t *testing.T) {
	snap := snapshot()
	terminating(&snap.ObjectMeta, SnapshotFinalizer)
	r := newRig(snap, content(), restore("a"), restore("b"))
	r.run(t, func(t *testing.T) {
		r.protect(t, snapRef, "a")
		r.bind("b")
		r.settle(6 * minute)
		r.wantProtected(t, true, "one left")
	})
}

func TestConflictsAreTriedAgain(t *testing.T) {
	r := newRig(snapshot(), content())
	r.run(t, func(t *testing.T) {
		n := 0
		r.fault(func(method, resource string) error {
			if n++; method == "PUT" && n < 8 {
				return apierrors.NewConflict(schema.GroupResource{Resource: resource}, "snap", errors.New("modified"))
			}
			return nil
		})
		r.protect(t, snapRef, "a")
		r.wantProtected(t, true, "after conflicts")
		r.api.set(func() { n = 0 })
		r.p.Release(snapRef, claimUID("a"))
		r.settle(0)
		r.wantProtected(t, false, "after conflicts")
	})
}

// The permission is an optional one.
func TestSnapshotsThatMayNotBeUpdatedAreUsedUnprotected(t *testing.T) {
	const said = "may be deleted meanwhile"
	r := newRig(snapshot(), content())
	r.run(t, func(t *testing.T) {
		r.fault(forbid("PUT volumesnapshots"))
		unprotected := func() {
			t.Helper()
			var open *Unprotected
			err := r.p.Protect(r.ctx, snapRef, claimUID("a"))
			if !errors.As(err, &open) || !strings.HasSuffix(err.Error(), "; grant the sidecar's ServiceAccount update on volumesnapshots.snapshot.storage.k8s.io") {
				t.Errorf("got %v", err)
			}
		}
		for range 3 {
			unprotected()
		}
		if n := r.logs(said); n != 1 {
			t.Errorf("it was said %d times, want once", n)
		}
		r.fault(nil)
		r.protect(t, snapRef, "a")
		r.wantProtected(t, true, "granted")
		r.fault(forbid("PUT volumesnapshots"))
		r.p.Release(snapRef, claimUID("a"))
		r.settle(minute)
		r.wantProtected(t, true, "denied again")
		r.fault(nil)
		r.settle(5 * minute)
		r.wantProtected(t, false, "granted again")
		r.fault(forbid("PUT volumesnapshots"))
		unprotected()
		if n := r.logs(said); n != 2 {
			t.Errorf("it was said %d times, want once more", n)
		}
	})
}

func TestClaimsMustBeProtected(t *testing.T) {
	r := newRig(sourceClaim(), sourceVolume())
	r.run(t, func(t *testing.T) {
		r.fault(forbid("PUT persistentvolumeclaims"))
		if err := r.p.Protect(r.ctx, srcRef, "a"); !apierrors.IsForbidden(err) || !strings.HasSuffix(err.Error(), "; grant the sidecar's ServiceAccount update on persistentvolumeclaims") {
			t.Errorf("got %v", err)
		}
		r.fault(nil)
		r.protect(t, srcRef, "a")
		if !r.has(srcID, CloneFinalizer) || !r.has(srcID, "kubernetes.io/pvc-protection") {
			t.Errorf("the finalizers are %v", r.api.get(srcID).GetFinalizers())
		}
	})
}

// A write keeps what this build knows nothing of.
func TestUnknownFieldsSurvive(t *testing.T) {
	r := newRig(sourceClaim(), sourceVolume())
	r.run(t, func(t *testing.T) {
		r.api.change(srcID, func(u *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(u.Object, "kept", "spec", "fieldOfTheFuture")
		})
		r.protect(t, srcRef, "a")
		if got, _, _ := unstructured.NestedString(r.api.get(srcID).Object, "spec", "fieldOfTheFuture"); got != "kept" {
			t.Errorf("it is %q", got)
		}
	})
}

// T26: no snapshots at all, and then they come.
func TestSweepWithoutTheAPI(t *testing.T) {
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(snap, content(), restore("a"), sourceClaim(), sourceVolume())
	r.api.snapshots = false
	r.run(t, func(t *testing.T) {
		r.settle(time.Hour)
		r.api.remove(claimID("a"))
		r.protect(t, srcRef, "b") // claims go on
		r.settle(minute)
		if n := r.logs("no VolumeSnapshots"); n != 1 || strings.Contains(r.log(), "Cannot") {
			t.Errorf("said %d times, want once and nothing else:\n%s", n, r.log())
		}
		r.api.set(func() { r.api.snapshots = true })
		r.settle(5 * minute)
		r.wantProtected(t, false, "the API is there")
	})
}

func TestSweepWithoutPermission(t *testing.T) {
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(snap, content())
	r.api.fault = forbid("LIST volumesnapshots")
	r.run(t, func(t *testing.T) {
		r.settle(time.Hour)
		if n := r.logs("grant the sidecar's ServiceAccount list on volumesnapshots"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, r.log())
		}
		r.fault(nil)
		r.settle(5 * minute)
		r.wantProtected(t, false, "granted")
	})
}

func TestSweepTakesAllPages(t *testing.T) {
	r := newRig(content())
	for i := range pageSize + 3 {
		snap := snapshot()
		snap.Name, snap.Finalizers = fmt.Sprintf("snap-%04d", i), []string{SnapshotFinalizer, "other"}
		r.api.add(snap)
	}
	r.run(t, func(t *testing.T) {
		for i := range pageSize + 3 {
			if name := fmt.Sprintf("snap-%04d", i); r.has(id{"volumesnapshots", "ns", name}, SnapshotFinalizer) {
				t.Fatalf("%s still has its finalizer", name)
			}
		}
		if n := r.api.count("LIST volumesnapshots"); n != 2 {
			t.Errorf("%d lists, want 2", n)
		}
	})
}

func TestFollowerWritesNothing(t *testing.T) {
	src := sourceClaim()
	terminating(&src.ObjectMeta, CloneFinalizer)
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(src, sourceVolume(), snap, content())
	r.leader = false
	r.run(t, func(t *testing.T) {
		r.settle(time.Hour)
		if !r.protected() || !r.has(srcID, CloneFinalizer) {
			t.Error("a follower took a finalizer off")
		}
		if n := r.api.count("GET volumesnapshots") + r.api.count("LIST volumesnapshots") + r.api.count("GET persistentvolumeclaims"); n != 0 {
			t.Errorf("a follower read %d times", n)
		}
		r.lead(true)
		r.settle(5 * minute)
		if r.protected() || r.has(srcID, CloneFinalizer) {
			t.Error("a leader did not take them off")
		}
	})
}

// One bad object must not stop the others.
func TestPanicBacksOff(t *testing.T) {
	bad, good := snapshot(), snapshot()
	bad.Name, bad.UID = "bad", "bad-uid"
	bad.Finalizers, good.Finalizers = []string{SnapshotFinalizer}, []string{SnapshotFinalizer}
	r := newRig(bad, good, content())
	var calls atomic.Int32
	r.config = func(cfg *ProtectionConfig) {
		cfg.InUse = func(ref Ref) bool {
			if ref.Name == "bad" {
				if calls.Add(1) < 5 {
					panic("bad object")
				}
			}
			return false
		}
	}
	r.run(t, func(t *testing.T) {
		r.wantProtected(t, false, "the good one")
		if n := calls.Load(); n > 2 {
			t.Errorf("%d calls within a second", n)
		}
		r.settle(minute)
		if r.has(id{"volumesnapshots", "ns", "bad"}, SnapshotFinalizer) {
			t.Error("the bad one was given up")
		}
		if r.logs("Caught a panic") != 4 {
			t.Errorf("the panics are not told:\n%s", r.log())
		}
	})
}

// What is told between the making and the running of a Protection is not lost.
func TestReleaseBeforeRun(t *testing.T) {
	r := newRig(snapshot(), content())
	r.config = func(cfg *ProtectionConfig) { cfg.SweepInterval = 0 }
	r.run(t, func(t *testing.T) {
		r.stop()
		r.early = func(p *Protection) {
			if err := p.Protect(t.Context(), snapRef, "a"); err != nil {
				t.Error(err)
			}
			r.wantProtected(t, true, "protected")
			p.Release(snapRef, "a")
		}
		r.start()
		r.wantProtected(t, false, "released")
	})
}

func TestReleaseOfWhatIsGone(t *testing.T) {
	r := newRig()
	r.run(t, func(t *testing.T) {
		r.p.Release(snapRef, "a")
		r.p.Release(srcRef, "a")
		r.settle(time.Hour)
		if r.logs("Cannot") != 0 {
			t.Error(r.log())
		}
	})
}

// Between a removal's read and its write the finalizer is still there to be seen.
func TestProtectDoesNotTrustAFinalizerThatIsComingOff(t *testing.T) {
	const request = 10 * time.Millisecond // before it is served, and again after
	r := newRig(snapshot(), content())
	r.config = func(cfg *ProtectionConfig) { cfg.SweepInterval = 0 }
	r.run(t, func(t *testing.T) {
		r.protect(t, snapRef, "a")
		r.api.set(func() { r.api.pause = func() { time.Sleep(request) } })
		r.p.Release(snapRef, "claim-a")
		// Read: the snapshot at 10ms, its content at 30ms. Written: at 50ms.
		r.settle(25 * time.Millisecond)
		r.protect(t, snapRef, "b") // would read at 35ms
		r.settle(time.Second)
		r.wantProtected(t, true, "a volume is made of it")
		if n := r.api.count("PUT volumesnapshots"); n != 3 {
			t.Errorf("%d updates, want 3: on, off and on", n)
		}
	})
}

func TestProtectWaitsNoLongerThanItsContext(t *testing.T) {
	r := newRig(snapshot(), content())
	r.run(t, func(t *testing.T) {
		end, ok := r.p.holds.beginRemoval(snapRef.key())
		if !ok {
			t.Fatal("nobody holds it")
		}
		defer end()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.p.Protect(ctx, snapRef, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestConfigOfProtection(t *testing.T) {
	factory := informers.NewSharedInformerFactory(newFakeAPI().client(), 0)
	good := ProtectionConfig{
		DriverName: testDriver, Dynamic: newFakeAPI().dynamic(), InUse: func(Ref) bool { return false },
		Volumes: factory.Core().V1().PersistentVolumes(),
	}
	for name, change := range map[string]func(*ProtectionConfig){
		"":                   func(*ProtectionConfig) {},
		"DriverName":         func(c *ProtectionConfig) { c.DriverName = "" },
		"Dynamic":            func(c *ProtectionConfig) { c.Dynamic = nil },
		"Claims":             func(c *ProtectionConfig) { c.Claims = nil },
		"Volumes":            func(c *ProtectionConfig) { c.Volumes = nil },
		"InUse":              func(c *ProtectionConfig) { c.InUse = nil },
		"Threads":            func(c *ProtectionConfig) { c.Threads = -1 },
		"SweepInterval":      func(c *ProtectionConfig) { c.SweepInterval = -1 },
		"Timeout":            func(c *ProtectionConfig) { c.Timeout = -1 },
		"RetryIntervalStart": func(c *ProtectionConfig) { c.RetryIntervalStart = -1 },
		"RetryIntervalMax":   func(c *ProtectionConfig) { c.RetryIntervalStart, c.RetryIntervalMax = time.Second, time.Millisecond },
	} {
		cfg := good
		cfg.Claims = informers.NewSharedInformerFactory(newFakeAPI().client(), 0).Core().V1().PersistentVolumeClaims()
		change(&cfg)
		if _, err := NewProtection(cfg); (err != nil) != (name != "") || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%q: got %v", name, err)
		}
	}
}
