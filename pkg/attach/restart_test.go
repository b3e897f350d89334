package attach

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func resourceMeta(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	must(err)
	return m
}

// After a change of leader keys of the former one are left alone until its
// calls have ended; fresh ones go on.
func TestHoldOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a", "h-b", "h-c"), objects(rwo("a"), rwo("b"), rwo("c"), rwo("d"), node("n1"), node("n2"),
			published("va", "a", "n1", false), published("vb", "b", "n1", true), published("vd", "d", "n1", true))...)
		r.config = func(cfg *Config) { cfg.HoldOff = 40 * time.Second }
		r.driver.apply("publish", "h-b", "id-n1")
		r.driver.apply("publish", "h-d", "id-n1")
		r.run(t, func(t *testing.T) { // two seconds are over
			r.api.add(va("vc", "c", "n1"))
			r.api.remove(vaResource, "vb")
			r.record("vd")
			fenced := make(chan error, 1)
			go func() { fenced <- r.fence("vd") }()
			r.settle(37 * time.Second)
			wantAttached(t, r, "vc", true)
			wantCalls(t, r, "publish h-c id-n1")
			r.settle(2 * time.Second)
			wantAttached(t, r, "va", true)
			wantGone(t, r, "vb")
			if err := <-fenced; err != nil {
				t.Error(err)
			}
			for _, h := range []string{"h-b", "h-d"} {
				if r.driver.has(h, "id-n1") {
					t.Errorf("%s is still there", h)
				}
			}
			if n := r.driver.count("publish"); n != 2 {
				t.Errorf("%d publishes, want 2:\n%s", n, r.driver.log())
			}
		})
	})
}

// kk#77324, kk#94912: a volume that was published just before the process died
// is found by its finalizer, and detached.
func TestKK77324_KilledBetweenPublishAndCommit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.api.setFault(func(_, sub string) (error, error) {
			if sub == "status" {
				return errAborted, nil
			}
			return nil, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.stop()
			r.api.setFault(nil)
			r.api.remove(vaResource, "va1")
			r.api.add(va("va2", "a", "n2"))
			r.start()
			r.settle(20 * time.Second)
			wantGone(t, r, "va1")
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n2")
		})
	})
}

// What is attached stays so over a restart, without a call.
func TestRestartAtRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			writes := r.api.patched("volumeattachments/") + r.api.patched("volumeattachments/status")
			r.restart()
			r.settle(time.Hour)
			wantAttached(t, r, "va", true)
			wantCalls(t, r, "publish h-a id-n1")
			if n := r.api.patched("volumeattachments/") + r.api.patched("volumeattachments/status"); n != writes {
				t.Errorf("%d idle writes", n-writes)
			}
		})
	})
}

// A fence that the former leader did not see acknowledged is made again, and a
// deleted VolumeAttachment with a record is unpublished again.
func TestRestartBetweenFenceAndDeletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.record("va1")
			if err := r.fence("va1"); err != nil {
				t.Fatal(err)
			}
			r.restart()
			r.api.add(va("va2", "a", "n2"))
			r.settle(time.Minute)
			wantAttached(t, r, "va2", false) // this process knows of no acknowledgement
			r.api.remove(vaResource, "va1")
			r.settle(time.Second)
			wantGone(t, r, "va1")
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n2")
		})
	})
}

// Two nodes that were both refused, or both cut off, before a restart do not
// wait for each other.
func TestBothUncertainAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"),
			published("va1", "a", "n1", false), published("va2", "a", "n2", false))...)
		r.driver.apply("publish", "h-a", "id-n2")
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			one, two := r.api.va("va1").Status.Attached, r.api.va("va2").Status.Attached
			if one == two {
				t.Errorf("attached: %v and %v, want one of them\n%s", one, two, r.driver.log())
			}
		})
	})
}
