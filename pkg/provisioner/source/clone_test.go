package source

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

func claimUID(name string) types.UID { return types.UID("claim-" + name) }

// Whether the finalizer of a claim comes off, with what is there.
func TestCloneFinalizerComesOff(t *testing.T) {
	type objects struct {
		src, user *v1.PersistentVolumeClaim
		pv        *v1.PersistentVolume
	}
	for name, c := range map[string]struct {
		change func(o *objects)
		off    bool
	}{
		"deleted, and nobody clones it": {off: true},
		"not deleted":                   {change: func(o *objects) { o.src.DeletionTimestamp = nil }},
		"a claim waits for its clone":   {change: func(o *objects) { o.user = clone("a") }},
		"a claim that is deleted itself waits for its clone": {change: func(o *objects) {
			o.user = clone("a")
			terminating(&o.user.ObjectMeta, "x")
		}},
		"a claim with dataSourceRef alone waits": {change: func(o *objects) {
			o.user = clone("a")
			o.user.Spec.DataSource = nil
		}},
		"a claim has its clone": {off: true, change: func(o *objects) {
			o.user = clone("a")
			o.user.Status.Phase, o.user.Spec.VolumeName = v1.ClaimBound, "pv-a"
		}},
		"a claim has its clone, and is about to be bound": {off: true, change: func(o *objects) {
			o.user = clone("a")
			o.user.Spec.VolumeName = "pv-a"
		}},
		"a claim has lost its clone": {off: true, change: func(o *objects) {
			o.user = clone("a")
			o.user.Status.Phase = v1.ClaimLost
		}},
		"a claim waits for a clone of another": {off: true, change: func(o *objects) { o.user = of(pending("a"), Claim, "other") }},
		"a claim waits for a snapshot of the name": {off: true, change: func(o *objects) {
			o.user = of(pending("a"), Snapshot, "src")
		}},
		"a claim elsewhere waits for a clone of one there": {off: true, change: func(o *objects) {
			o.user = clone("a")
			o.user.Namespace = "elsewhere"
		}},
		"a claim waits for what a populator makes": {off: true, change: func(o *objects) {
			o.user = clone("a")
			o.user.Spec.DataSource.APIGroup, o.user.Spec.DataSourceRef.APIGroup = ptr("example.com"), ptr("example.com")
		}},
		"volume gone, ours by the annotation": {off: true, change: func(o *objects) {
			o.pv = nil
			o.src.Annotations = map[string]string{annProvisioner: testDriver, annBetaProvisioner: otherDriver}
		}},
		"volume gone, ours by the older annotation": {off: true, change: func(o *objects) {
			o.pv = nil
			o.src.Annotations = map[string]string{annBetaProvisioner: testDriver}
		}},
		"volume gone, another driver's by the annotation": {change: func(o *objects) {
			o.pv = nil
			o.src.Annotations = map[string]string{annProvisioner: otherDriver}
		}},
		"volume gone, nobody's": {off: true, change: func(o *objects) { o.pv = nil }},
		"an in-tree volume":     {change: func(o *objects) { o.pv.Spec.CSI = nil }},
		"a volume migrated to us": {off: true, change: func(o *objects) {
			o.pv.Spec.CSI, o.pv.Annotations = nil, map[string]string{annMigratedTo: testDriver}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &objects{src: sourceClaim(), pv: sourceVolume()}
			terminating(&o.src.ObjectMeta, CloneFinalizer)
			if c.change != nil {
				c.change(o)
			}
			objs := []runtime.Object{o.src}
			if o.user != nil {
				objs = append(objs, o.user)
			}
			if o.pv != nil {
				objs = append(objs, o.pv)
			}
			r := newRig(objs...)
			r.run(t, func(t *testing.T) {
				r.settle(6 * minute)
				if got := !r.has(srcID, CloneFinalizer); got != c.off {
					t.Errorf("it came off: %v, want %v", got, c.off)
				}
				if !r.has(srcID, "kubernetes.io/pvc-protection") {
					t.Error("another finalizer is gone")
				}
			})
		})
	}
}

// The story of one clone, and of its source's deletion meanwhile.
func TestSourceClaimStaysWhileItIsCloned(t *testing.T) {
	r := newRig(sourceClaim(), sourceVolume(), clone("a"), clone("b"))
	r.run(t, func(t *testing.T) {
		want := func(protected bool, when string) {
			t.Helper()
			r.settle(minute)
			if got := r.has(srcID, CloneFinalizer); got != protected {
				t.Errorf("%s: protected is %v, want %v", when, got, protected)
			}
		}
		r.protect(t, srcRef, "a")
		r.protect(t, srcRef, "b")
		r.api.remove(srcID)
		want(true, "two are cloning")
		r.bind("a")
		r.p.Release(srcRef, claimUID("a"))
		want(true, "one is cloning")
		r.api.remove(claimID("b"))
		want(true, "its claim is gone, the call is not")
		r.p.Release(srcRef, claimUID("b"))
		want(false, "none is cloning")
		r.api.change(srcID, func(u *unstructured.Unstructured) { u.SetFinalizers(nil) })
		if r.api.get(srcID) != nil {
			t.Error("the source cannot be deleted")
		}
	})
}

// Clones of a claim that stays cost no writes when they end.
func TestClonesOfALivingSourceCostOneWrite(t *testing.T) {
	r := newRig(sourceClaim(), sourceVolume(), clone("a"), clone("b"))
	r.run(t, func(t *testing.T) {
		for _, user := range []string{"a", "b"} {
			r.protect(t, srcRef, user)
			r.bind(user)
			r.p.Release(srcRef, claimUID(user))
			r.settle(minute)
		}
		if puts, gets := r.api.count("PUT persistentvolumeclaims"), r.api.count("GET persistentvolumeclaims"); puts != 1 || gets != 2 {
			t.Errorf("%d writes and %d reads, want 1 and 2", puts, gets)
		}
	})
}

// Long after it was cloned, a claim is deleted.
func TestSourceClaimCanBeDeletedLater(t *testing.T) {
	src := sourceClaim()
	src.Finalizers = append(src.Finalizers, CloneFinalizer)
	r := newRig(src, sourceVolume())
	r.config = func(cfg *ProtectionConfig) { cfg.SweepInterval = 0 }
	r.run(t, func(t *testing.T) {
		r.settle(time.Hour)
		if !r.has(srcID, CloneFinalizer) {
			t.Error("it is not deleted yet")
		}
		r.api.remove(srcID)
		r.settle(0)
		if r.has(srcID, CloneFinalizer) {
			t.Error("it is deleted, and nobody clones it")
		}
	})
}

// The informer still has an older claim of the name, which was being deleted.
func TestCloneFinalizerIsJudgedByTheLiveClaim(t *testing.T) {
	src := sourceClaim()
	src.Finalizers = append(src.Finalizers, CloneFinalizer)
	r := newRig(src, sourceVolume())
	r.run(t, func(t *testing.T) {
		older := sourceClaim()
		older.UID = "older"
		terminating(&older.ObjectMeta, CloneFinalizer)
		if err := r.p.claims.GetStore().Update(older); err != nil {
			t.Fatal(err)
		}
		if _, err := r.p.look(r.ctx, srcRef.key()); err != nil || !r.has(srcID, CloneFinalizer) {
			t.Errorf("it is gone, with error %v", err)
		}
	})
}
