package source

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// others are the processes of other nodes.
type others struct {
	mu    sync.Mutex
	where string
	err   error
	asked []Ref
	// meanwhile happens while they are asked.
	meanwhile func()
}

func (o *others) config(cfg *ProtectionConfig) {
	cfg.SweepInterval = 0
	cfg.Elsewhere = func(_ context.Context, ref Ref) (string, error) {
		o.mu.Lock()
		o.asked = append(o.asked, ref)
		meanwhile := o.meanwhile
		o.mu.Unlock()
		if meanwhile != nil {
			meanwhile()
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.where, o.err
	}
}

// set changes what they say.
func (o *others) set(where string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.where, o.err, o.meanwhile = where, err, nil
}

// times is how often they were asked.
func (o *others) times() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.asked)
}

// TestIntentOfAnotherProcessKeepsTheSource: a clone that another node makes, of a
// claim that was deleted since, is in that node's journal alone. Not knowing keeps
// the source too.
func TestIntentOfAnotherProcessKeepsTheSource(t *testing.T) {
	for name, o := range map[string]*others{"in use there": {where: "ConfigMap x"}, "not known": {err: errors.New("the API server is away")}} {
		t.Run(name, func(t *testing.T) {
			src := sourceClaim()
			terminating(&src.ObjectMeta, CloneFinalizer)
			r := newRig(src, sourceVolume())
			r.config = o.config
			r.run(t, func(t *testing.T) {
				r.settle(10 * minute)
				if !r.has(srcID, CloneFinalizer) || o.times() < 2 || o.asked[0] != srcRef {
					t.Errorf("protected %v, asked %d times", r.has(srcID, CloneFinalizer), o.times())
				}
				if name == "in use there" && !strings.Contains(r.log(), "another process makes of it") {
					t.Errorf("the log does not say why: %s", r.log())
				}
				o.set("", nil)
				r.settle(6 * minute) // the longest pause after an error is five
				if r.has(srcID, CloneFinalizer) {
					t.Error("protected for nobody")
				}
			})
		})
	}
}

// TestOthersAreNotAskedWithoutNeed: a list of all journals is dear.
func TestOthersAreNotAskedWithoutNeed(t *testing.T) {
	o := &others{}
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(snap, content(), restore("a"))
	r.config = o.config
	r.run(t, func(t *testing.T) {
		r.intent(snapRef, 1)
		r.bind("a")
		r.settle(minute / 2)
		if o.times() > 0 {
			t.Error("asked for what is in use here")
		}
		r.intent(snapRef, -1)
		r.p.Release(snapRef, claimUID("a"))
		r.settle(0)
		r.p.Release(snapRef, claimUID("a"))
		r.settle(10 * minute)
		if r.wantProtected(t, false, "released"); o.times() != 1 {
			t.Errorf("asked %d times for one removal", o.times())
		}
	})
}

// TestClaimThatComesWhileOthersAreAsked keeps its source.
func TestClaimThatComesWhileOthersAreAsked(t *testing.T) {
	snap := snapshot()
	snap.Finalizers = []string{SnapshotFinalizer}
	r := newRig(snap, content())
	o := &others{meanwhile: func() {
		r.api.add(restore("a"))
		time.Sleep(time.Second)
	}}
	r.config = o.config
	r.run(t, func(t *testing.T) {
		r.p.Release(snapRef, "gone")
		r.settle(10 * minute)
		if r.wantProtected(t, true, "a claim waits for it"); o.times() != 1 {
			t.Errorf("asked %d times", o.times())
		}
		o.set("", nil)
		r.bind("a")
		r.settle(0)
		r.wantProtected(t, false, "bound")
	})
}

// TestProcessesThatAreNotNearLookLater: of all that hear that a claim needs its
// source no more, the one whose claim it was goes first.
func TestProcessesThatAreNotNearLookLater(t *testing.T) {
	for _, near := range []bool{true, false} {
		src := sourceClaim()
		terminating(&src.ObjectMeta)
		snap := snapshot()
		snap.Finalizers = []string{SnapshotFinalizer}
		r := newRig(snap, content(), restore("a"), restore("b"), src, sourceVolume())
		r.config = func(cfg *ProtectionConfig) {
			cfg.SweepInterval = 0
			cfg.Near = func(*v1.PersistentVolumeClaim) bool { return near }
		}
		r.run(t, func(t *testing.T) {
			before := r.api.count("GET volumesnapshots")
			r.bind("a")
			r.api.remove(claimID("b"))
			r.settle(minute - 2*time.Second)
			r.wantProtected(t, !near, "within a minute")
			if looked := r.api.count("GET volumesnapshots") > before; looked != near {
				t.Errorf("near %v: looked at it: %v", near, looked)
			}
			r.settle(minute + 2*time.Second)
			r.wantProtected(t, false, "after two")
		})
	}
}
