package attach

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Whatever a pair was before, it is what it became; and the actual state has it
// if, and only if, the node may hold the volume.
func TestPair(t *testing.T) {
	for _, before := range states {
		for _, after := range states {
			w := newWorld("d.example")
			p := &pair{world: w, volume: volume.UniqueName("d.example", "h"), spec: w.spec("h"), node: "n"}
			p.become(before)
			p.become(after)
			if got := p.state(); got != after {
				t.Errorf("from %s to %s: it is %s", before, after, got)
			}
			want := cache.AttachStateDetached
			switch {
			case after == Attached:
				want = cache.AttachStateAttached
			case after.MayHold():
				want = cache.AttachStateUncertain
			}
			if got := w.actual.GetAttachState(p.volume, "n"); got != want {
				t.Errorf("from %s to %s: actual state %v, want %v", before, after, got, want)
			}
		}
	}
}

// A volume is wanted for as long as any VolumeAttachment wants it, and a node
// nobody wants anything on is not kept.
func TestPairWanted(t *testing.T) {
	w := newWorld("d.example")
	p := &pair{world: w, volume: volume.UniqueName("d.example", "h"), spec: w.spec("h"), node: "n"}
	for i, step := range []struct {
		uid    types.UID
		want   bool
		wanted bool
	}{{"1", true, true}, {"1", true, true}, {"2", true, true}, {"1", false, true}, {"1", false, true}, {"2", false, false}, {"3", false, false}} {
		p.want(step.uid, step.want)
		if p.wanted() != step.wanted || w.desired.NodeExists("n") != step.wanted {
			t.Errorf("step %d: wanted %v, node %v, want %v", i, p.wanted(), w.desired.NodeExists("n"), step.wanted)
		}
	}
}

// What is wanted must be attached, and what is not must be gone for sure.
func TestOutOfStep(t *testing.T) {
	rest := map[bool][]State{true: {Attached}, false: {Absent, Fenced}}
	for wanted, atRest := range rest {
		for _, s := range states {
			w := newWorld("d.example")
			p := &pair{world: w, volume: volume.UniqueName("d.example", "h"), spec: w.spec("h"), node: "n"}
			p.want("1", wanted)
			p.become(s)
			if got, want := p.outOfStep(), !slices.Contains(atRest, s); got != want {
				t.Errorf("wanted %v and %s: out of step %v, want %v", wanted, s, got, want)
			}
		}
	}
}

// checkWorld holds the desired state against the VolumeAttachments, and the
// index of nodes against the entries.
func (l *ledger) checkWorld() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	desired, entries, indexed := 0, 0, 0
	for h, v := range l.volumes {
		for node, e := range v.keys {
			entries++
			wanted := slices.ContainsFunc(sorted(e.refs), func(r *ref) bool { return toRef(r).wanted() })
			if wanted {
				desired++
			}
			if _, ok := l.byNode[node][h]; !ok || e.wanted() != wanted {
				return fmt.Errorf("%s on %s: in the index %v, in the desired state %v, want %v", h, node, ok, e.wanted(), wanted)
			}
		}
	}
	for _, handles := range l.byNode {
		indexed += len(handles)
	}
	if n := len(l.world.desired.GetVolumesToAttach()); n != desired || indexed != entries {
		return fmt.Errorf("%d volumes in the desired state, want %d; %d in the index, want %d", n, desired, indexed, entries)
	}
	return nil
}

// What no event tells of is found by holding the desired against the actual state.
func TestReconcile(t *testing.T) {
	for name, interval := range map[string]time.Duration{"at intervals": 10 * time.Minute, "never": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
				r.config = func(cfg *Config) { cfg.ResyncInterval = interval }
				r.run(t, func(t *testing.T) {
					r.api.add(va("va", "a", "n1"))
					r.settle(time.Minute)
					r.c.ledger.mu.Lock()
					r.c.ledger.entry(volume.Key{Handle: "h-a", Node: "n1"}).become(Uncertain)
					r.c.ledger.mu.Unlock()
					r.settle(8 * time.Minute)
					wantCalls(t, r, "publish h-a id-n1")
					r.settle(2 * time.Minute)
					if interval > 0 {
						wantCalls(t, r, "publish h-a id-n1\npublish h-a id-n1")
					} else {
						wantCalls(t, r, "publish h-a id-n1")
					}
					calls := r.driver.log()
					r.settle(time.Hour)
					wantCalls(t, r, calls) // at rest
				})
			})
		})
	}
}
