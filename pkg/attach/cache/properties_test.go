package cache

import (
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

var (
	actualWrites = []string{
		"add", "attached", "uncertain", "delete", "mounted", "allMounted", "setDetach", "resetDetach",
		"unreport", "rereport", "setNeeded", "resetNeeded",
	}
	// Of these report and reportOf may be writes as well.
	actualReads   = []string{"state", "exists", "nodes", "all", "on", "perNode", "report", "reportOf"}
	desiredWrites = []string{"addNode", "deleteNode", "addPod", "deletePod", "setMulti"}
	desiredReads  = []string{"nodeExists", "exists", "multi", "podsOn", "toAttach", "pods"}

	// The answers to these are the same for all volumes and nodes.
	ofTheWhole = map[string]bool{"all": true, "perNode": true, "report": true, "toAttach": true, "pods": true}

	someVolumes = []string{"v1", "v2", "v3"}
	someNodes   = []string{"n1", "n2", "n3"}
)

// drawOp draws a call out of few volumes, nodes and pods, so that they meet.
func drawOp(t *rapid.T, kinds []string, list []string) op {
	return op{
		kind:   rapid.SampledFrom(kinds).Draw(t, "call"),
		volume: rapid.SampledFrom(someVolumes).Draw(t, "volume"),
		node:   rapid.SampledFrom(someNodes).Draw(t, "node"),
		pod:    rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "pod"),
		dev:    rapid.SampledFrom([]string{"d1", "d2", ""}).Draw(t, "dev"),
		yes:    rapid.Bool().Draw(t, "yes"),
		named:  rapid.Bool().Draw(t, "named"),
		noSpec: rapid.Bool().Draw(t, "noSpec"),
		list:   rapid.SliceOfDistinct(rapid.SampledFrom(list), rapid.ID[string]).Draw(t, "list"),
	}
}

// compare makes the call of both, and then asks both for all they know, but for
// what asking would change.
func compare(t *rapid.T, m model, run func(op) string, o op, reads []string) {
	if got, want := run(o), m.apply(o); got != want {
		t.Fatalf("%+v answers %q, want %q", o, got, want)
	}
	for _, kind := range reads {
		for _, v := range someVolumes {
			for _, n := range someNodes {
				read := op{kind: kind, volume: v, node: n, list: someNodes}
				if got, want := run(read), m.clone().apply(read); got != want {
					t.Fatalf("after %+v %s of %s and %s is %q, want %q", o, kind, v, n, got, want)
				}
				if ofTheWhole[kind] {
					break
				}
			}
			if ofTheWhole[kind] {
				break
			}
		}
	}
}

// TestActualIsItsModel: after any calls the answers are those of plain maps.
func TestActualIsItsModel(t *testing.T) {
	for _, mode := range []Mode{Seed, Modern} {
		t.Run(modeNames[mode], func(t *testing.T) {
			reads := []string{"state", "exists", "nodes", "all", "on", "perNode"}
			if mode == Seed {
				reads = append(reads, "report") // which there changes nothing
			}
			rapid.Check(t, func(t *rapid.T) {
				epoch := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
				clock := testingclock.NewFakePassiveClock(epoch)
				w := NewActualStateOfWorld(volume.NewVolumePluginMgr(driver), WithMode(mode), WithClock(clock))
				m := newActualModel(mode)
				t.Repeat(map[string]func(*rapid.T){
					"call": func(t *rapid.T) {
						o := drawOp(t, append(actualWrites, actualReads...), someVolumes)
						compare(t, m, func(o op) string { return runActual(w, epoch, o) }, o, reads)
					},
					"wait": func(*rapid.T) {
						m.now++
						clock.SetTime(clock.Now().Add(time.Second))
					},
				})
			})
		})
	}
}

// TestDesiredIsItsModel: after any calls the answers are those of plain maps,
// and a pod is where GetPodToAdd says.
func TestDesiredIsItsModel(t *testing.T) {
	for _, mode := range []Mode{Seed, Modern} {
		t.Run(modeNames[mode], func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := NewDesiredStateOfWorld(volume.NewVolumePluginMgr(driver), WithMode(mode))
				m := newDesiredModel()
				t.Repeat(map[string]func(*rapid.T){"call": func(t *rapid.T) {
					o := drawOp(t, append(desiredWrites, desiredReads...), someNodes)
					compare(t, m, func(o op) string { return runDesired(w, o) }, o, desiredReads)
					for name, p := range w.GetPodToAdd() {
						pods := w.GetVolumePodsOnNodes([]string{p.NodeName}, p.VolumeName)
						found := false
						for _, pod := range pods {
							found = found || pod == p.Pod && string(pod.UID) == string(name)
						}
						if !found {
							t.Fatalf("pod %s does not use %s on %s", name, p.VolumeName, p.NodeName)
						}
					}
				}})
			})
		})
	}
}
