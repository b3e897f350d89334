package attach

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/informers"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// drained calls Drain and tells how long Run took to return.
func (r *rig) drained() time.Duration {
	began := time.Now()
	r.c.Drain()
	<-r.c.stopped
	return time.Since(began)
}

func slow(method string, d time.Duration) func(method, handle, nodeID string) behaviour {
	return func(m, _, _ string) behaviour {
		if m == method {
			return behaviour{effect: true, takes: d}
		}
		return healthy
	}
}

func TestDrainLetsAPublishEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a", "h-b", "h-c"), objects(rwo("a"), rwo("b"), rwo("c"), node("n1"))...)
		r.config = func(cfg *Config) { cfg.Workers = 1 }
		r.driver.setFunc(slow("publish", 5*time.Second))
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.api.add(va("va2", "b", "n1")) // waits for the one worker
			r.settle(time.Second)
			r.c.Drain()
			r.api.add(va("va3", "c", "n1"))
			if took := r.drained(); took != 3*time.Second {
				t.Errorf("Run returned %v after Drain, want the rest of the call, 3s", took)
			}
			wantAttached(t, r, "va1", true)
			for _, name := range []string{"va2", "va3"} {
				if a := wantAttached(t, r, name, false); len(a.Finalizers) > 0 {
					t.Errorf("%s has an intent: the next leader would hold off for it", name)
				}
			}
			wantCalls(t, r, "publish h-a id-n1")
		})
	})
}

func TestDrainLetsAnUnpublishEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.driver.setFunc(slow("unpublish", 5*time.Second))
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.api.add(va("va2", "a", "n2"))
			r.api.remove(vaResource, "va1")
			r.settle(time.Second)
			r.drained()
			wantGone(t, r, "va1")
			wantAttached(t, r, "va2", false)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
		})
		// The next leader finds nothing in doubt.
		r.run(t, func(t *testing.T) {
			r.settle(time.Second)
			wantAttached(t, r, "va2", true)
		})
	})
}

func TestDrainShowsTheErrorOfTheCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.driver.set(behaviour{err: errRefused, takes: 5 * time.Second})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.drained()
			if a := wantAttached(t, r, "va", false); a.Status.AttachError == nil {
				t.Error("the status does not tell how the call ended")
			}
			wantCalls(t, r, "publish h-a id-n1")
		})
	})
}

// A drain that takes too long, or a lost lease: Run's context ends.
func TestEndOfTheContextCutsADrainShort(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.driver.set(behaviour{effect: true, takes: 10 * time.Second})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.c.Drain()
			began := time.Now()
			r.stop()
			if took := time.Since(began); took != 0 {
				t.Errorf("Run returned %v after its context ended, want at once", took)
			}
			wantAttached(t, r, "va", false)
			if e := r.c.ledger.entry(volume.Key{Handle: "h-a", Node: "n1"}); e.state() != Uncertain {
				t.Errorf("the volume is %s after a call that was broken off, want Uncertain", e.state())
			}
			r.start() // for the rig to stop
		})
	})
}

// Who asked for the fence may be told to stop before the driver answers; a call
// that is broken off is uncertain.
func TestFenceOutlivesItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a", "h-b"), objects(rwo("a"), rwo("b"), node("n1"))...)
		r.driver.setFunc(slow("unpublish", 5*time.Second))
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.api.add(va("va2", "b", "n1"))
			r.settle(time.Second)
			r.record("va1")
			r.record("va2")
			ctx, cancel := context.WithCancel(t.Context())
			fenced := make(chan error, 1)
			go func() { fenced <- r.c.Fence(ctx, r.api.va("va1")) }()
			r.settle(time.Second)
			cancel()
			if err := r.c.Fence(ctx, r.api.va("va2")); !errors.Is(err, context.Canceled) {
				t.Errorf("Fence() = %v for a caller that has given up, want that no call is begun", err)
			}
			if took := r.drained(); took != 4*time.Second {
				t.Errorf("Run returned %v after Drain, want the rest of the fence, 4s", took)
			}
			if err := <-fenced; err != nil {
				t.Errorf("Fence() = %v, want the driver's answer", err)
			}
			if r.driver.has("h-a", "id-n1") || r.driver.count("unpublish") != 1 {
				t.Errorf("calls: %s", r.driver.log())
			}
			if err := r.fence("va2"); err == nil {
				t.Error("a fence succeeds after the end")
			}
		})
	})
}

func TestFenceIsRefusedDuringADrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a", "h-b"), objects(rwo("a"), rwo("b"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.driver.setFunc(slow("publish", 5*time.Second))
			r.api.add(va("va2", "b", "n1"))
			r.settle(time.Second)
			r.record("va1")
			r.c.Drain()
			if err := r.fence("va1"); !errors.Is(err, errDraining) {
				t.Errorf("Fence() = %v, want errDraining", err)
			}
			if !r.driver.has("h-a", "id-n1") {
				t.Error("the volume was unpublished")
			}
		})
	})
}

// Nothing may keep Run from returning that has not begun yet.
func TestDrainBeforeTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, begun := range []bool{false, true} {
			api := newFakeAPI()
			c, err := New(Config{DriverName: testDriver, Driver: newFakeDriver(), Client: api, Informers: informers.NewSharedInformerFactory(api, 0)})
			must(err)
			if !begun {
				c.Drain()
			}
			done := make(chan error, 1)
			go func() { done <- c.Run(t.Context()) }() // the informers never sync
			if begun {
				time.Sleep(time.Minute)
				c.Drain()
			}
			if err := <-done; err != nil {
				t.Errorf("Run() = %v", err)
			}
			c.Drain()
		}
	})
}
