package attach

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

type publications = map[volume.Handle][]string

// comparing is a rig whose driver tells where its volumes are published.
func comparing(d *fakeDriver, change func(*Config), objs ...runtime.Object) *rig {
	r := newRig(d, objs...)
	r.config = func(cfg *Config) {
		cfg.Evidence = d
		cfg.Capabilities = func() Capabilities { return Capabilities{TellsPublished: true} }
		if change != nil {
			change(cfg)
		}
	}
	return r
}

// told are the events so far.
func (r *rig) told() (all []string) {
	for {
		select {
		case e := <-r.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

// ea#291: what the driver lists as attached is published once, and what was
// attached while the list was read is not missed in it.
func TestEA291_ListedIsNotPublishedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := comparing(d, nil, objects(rwo("a"), rwo("b"), node("n1"))...)
		d.setList(func(_ context.Context, truth publications) (publications, error) {
			time.Sleep(30 * time.Second) // what follows happens meanwhile
			truth["h-b"] = nil
			return truth, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(DefaultEvidenceInterval) // the first list begins
			for range 4 {
				r.settle(10 * time.Second)
				r.api.add(va("vb", "b", "n1"))
				r.settle(DefaultEvidenceInterval + 20*time.Second)
				r.api.remove(vaResource, "vb")
			}
			if d.listed() < 3 {
				t.Fatalf("%d lists", d.listed())
			}
			if n := strings.Count(d.log(), "publish h-a id-n1"); n != 1 {
				t.Errorf("%d publishes of what is attached", n)
			}
			if n := strings.Count("\n"+d.log(), "\npublish h-b"); n != 4 {
				t.Errorf("%d publishes of what came and went 4 times", n)
			}
		})
	})
}

// A list that began before a call ended counts neither for nor against it.
func TestListThatBeganBeforeACallEnded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a", "h-b")
		r := comparing(d, nil, objects(rwo("a"), rwo("b"), node("n1"))...)
		d.setList(func(_ context.Context, truth publications) (publications, error) {
			truth["h-b"] = slices.Clip(truth["h-b"]) // nowhere, where it is not known yet
			time.Sleep(10 * time.Second)
			return truth, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(DefaultEvidenceInterval) // the first list begins
			r.api.add(va("vb", "b", "n1"))
			r.settle(10 * time.Second) // and ends
			d.alter("unpublish", "h-b", "id-n1")
			r.settle(DefaultEvidenceInterval + 10*time.Second)
			if n := d.listed(); n != 2 || d.has("h-b", "id-n1") {
				t.Fatalf("published again after %d lists", n)
			}
			r.settle(DefaultEvidenceInterval + 10*time.Second)
			if !d.has("h-b", "id-n1") {
				t.Error("not published again after two lists that count")
			}
		})
	})
}

// What the storage has lost is published again, and is never said to be detached
// meanwhile.
func TestLostPublicationIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := comparing(d, nil, objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			d.alter("unpublish", "h-a", "id-n1")
			r.settle(DefaultEvidenceInterval)
			if d.has("h-a", "id-n1") {
				t.Fatal("one list was enough")
			}
			r.settle(DefaultEvidenceInterval)
			if !d.has("h-a", "id-n1") {
				t.Error("it is not published again after two lists")
			}
			wantAttached(t, r, "va", true)
		})
	})
}

// ea#416, vsphere#2534: a driver that lists other IDs than it is called with is
// not called every minute.
func TestEA416_ContradictionIsDamped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := comparing(d, nil, objects(rwo("a"), node("n1"))...)
		d.setList(func(context.Context, publications) (publications, error) {
			return publications{"h-a": {"zone/id-n1"}}, nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(2 * time.Hour)
			if n := d.count("publish"); n != 1+repairsAtMost {
				t.Errorf("%d publishes in two hours, want %d", n, 1+repairsAtMost)
			}
			if n := strings.Count(strings.Join(r.told(), "\n"), ReasonContradiction); n != 1 {
				t.Errorf("%d events", n)
			}
			wantAttached(t, r, "va", true)
			// Once it lists as it is called, it is believed again.
			d.setList(nil)
			r.settle(2 * DefaultEvidenceInterval)
			d.alter("unpublish", "h-a", "id-n1")
			r.settle(3 * DefaultEvidenceInterval)
			if !d.has("h-a", "id-n1") {
				t.Error("it is never believed again")
			}
		})
	})
}

// ea#599, ea#356: no conclusion from a list that failed, nor about a volume that
// it tells nothing of.
func TestEA599_NoAnswerProvesNothing(t *testing.T) {
	for name, list := range map[string]func(context.Context, publications) (publications, error){
		"failed":   func(context.Context, publications) (publications, error) { return nil, errors.New("deadline exceeded") },
		"left out": func(context.Context, publications) (publications, error) { return publications{"h-b": nil}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newFakeDriver("h-a")
				d.setList(list)
				r := comparing(d, nil, objects(rwo("a"), node("n1"))...)
				r.run(t, func(t *testing.T) {
					r.api.add(va("va", "a", "n1"))
					r.settle(time.Second)
					d.alter("unpublish", "h-a", "id-n1")
					r.settle(10 * DefaultEvidenceInterval)
					wantCalls(t, r, "publish h-a id-n1")
				})
			})
		})
	}
}

// linstor-csi#52: an unpublish that the driver answers with an error, of a volume
// that it lists as detached, does not hold the volume for ever.
func TestLinstor52_DetachedBehindOurBack(t *testing.T) {
	for name, tc := range map[string]struct {
		publish, unpublish behaviour
		released           bool
	}{
		"answered":                    {healthy, behaviour{err: &callError{13, volume.OutcomeUncertain, "not connected"}}, true},
		"not answered":                {healthy, behaviour{err: errTimeout}, false},
		"a publish may be on its way": {behaviour{err: errTimeout, effect: true}, behaviour{err: &callError{5, volume.OutcomeFinal, "not found"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newFakeDriver("h-a")
				r := comparing(d, nil, objects(rwo("a"), node("n1"), node("n2"))...)
				d.setFunc(func(method, _, nodeID string) behaviour {
					switch {
					case nodeID != "id-n1":
						return healthy
					case method == "publish":
						return tc.publish
					default:
						return tc.unpublish
					}
				})
				r.run(t, func(t *testing.T) {
					r.api.add(va("va", "a", "n1"))
					r.settle(time.Second)
					d.alter("unpublish", "h-a", "id-n1")
					r.api.remove(vaResource, "va")
					r.api.add(va("va2", "a", "n2"))
					r.settle(time.Hour)
					wantAttached(t, r, "va2", tc.released)
					if gone := r.api.va("va") == nil; gone != tc.released {
						t.Errorf("the first one is gone: %v, want %v", gone, tc.released)
					}
				})
			})
		})
	}
}

// A list that began while a call of a former leader may be under way says nothing.
func TestListsOfTheHoldOffProveNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		r := comparing(d, func(cfg *Config) { cfg.HoldOff = 10 * time.Minute }, objects(rwo("a"), node("n1"), published("va", "a", "n1", true))...)
		d.setList(func(context.Context, publications) (publications, error) { return publications{"h-a": nil}, nil })
		r.run(t, func(t *testing.T) {
			r.settle(10 * time.Minute)
			if d.listed() < 5 {
				t.Fatalf("%d lists", d.listed())
			}
			wantCalls(t, r)
			r.settle(3 * time.Minute)
			if d.count("publish") == 0 {
				t.Error("lists prove nothing after the hold-off either")
			}
		})
	})
}

func TestOrphans(t *testing.T) {
	for name, tc := range map[string]struct {
		handle, nodeID string
		detach         bool
		more           []runtime.Object
		told, detached bool
	}{
		"told of":                                  {"h-a", "id-n1", false, nil, true, false},
		"detached where that is wanted":            {"h-a", "id-n1", true, nil, true, true},
		"a node of another cluster":                {"h-a", "id-elsewhere", true, nil, false, false},
		"a volume of another cluster":              {"h-foreign", "id-n1", true, nil, false, false},
		"a VolumeAttachment has it":                {"h-a", "id-n1", true, objects(published("va", "a", "n1", true)), false, false},
		"one that cannot be understood, there":     {"h-a", "id-n1", true, objects(va("va", "nowhere", "n1")), true, false},
		"one that cannot be understood, elsewhere": {"h-a", "id-n1", true, objects(va("va", "nowhere", "n2")), true, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				d := newFakeDriver()
				d.alter("publish", tc.handle, tc.nodeID)
				r := comparing(d, func(cfg *Config) { cfg.DetachOrphans = tc.detach }, append(tc.more, objects(rwo("a"), node("n1"), node("n2"))...)...)
				r.run(t, func(t *testing.T) {
					r.settle(DefaultEvidenceInterval)
					if !d.has(tc.handle, tc.nodeID) || len(r.told()) > 1 {
						t.Fatal("one sighting was enough")
					}
					r.settle(5 * DefaultEvidenceInterval)
					if d.has(tc.handle, tc.nodeID) == tc.detached {
						t.Errorf("detached: %v, want %v", !tc.detached, tc.detached)
					}
					events := strings.Join(r.told(), "\n")
					if n := strings.Count(events, ReasonOrphaned); n > 1 || (n == 1) != tc.told {
						t.Errorf("told %d times, want it: %v\n%s", n, tc.told, events)
					}
					if tc.told && !strings.Contains(events, "node n1 (id-n1)") {
						t.Errorf("events %q", events)
					}
				})
			})
		})
	}
}

// An orphan that its VolumeAttachment comes for is attached, not detached.
func TestOrphanIsClaimed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver("h-a")
		d.alter("publish", "h-a", "id-n1")
		r := comparing(d, func(cfg *Config) { cfg.DetachOrphans = true }, objects(rwo("a"), node("n1"))...)
		d.setList(func(_ context.Context, truth publications) (publications, error) {
			if d.listed() == sightingsNeeded {
				r.api.add(va("va", "a", "n1"))
			}
			return maps.Clone(truth), nil
		})
		r.run(t, func(t *testing.T) {
			r.settle(10 * DefaultEvidenceInterval)
			wantAttached(t, r, "va", true)
			if n := d.count("unpublish"); n > 0 {
				t.Errorf("%d unpublishes under a live VolumeAttachment", n)
			}
		})
	})
}

// Two nodes of a volume that other nodes may have too are weighed apart.
func TestSharedVolumeIsWeighedByNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver()
		r := comparing(d, nil, objects(pv("a", v1.ReadWriteMany), node("n1"), node("n2"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.api.add(va("va2", "a", "n2"))
			r.settle(time.Second)
			d.alter("unpublish", "h-a", "id-n2")
			r.settle(5 * DefaultEvidenceInterval)
			if n := strings.Count(d.log(), "id-n1"); n != 1 {
				t.Errorf("%d calls for the node that has it", n)
			}
			if !d.has("h-a", "id-n2") {
				t.Error("the other node has lost it")
			}
		})
	})
}
