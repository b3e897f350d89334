package main

import (
	"io"
	"testing"

	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

// Both sides do what is measured, in the smallest world.
func TestMeasure(t *testing.T) {
	w := worlds[0]
	all := attachments(w.Attachments, w.Nodes)
	for name, make := range map[string]func() subject{"ours": newOurs, "theirs": newTheirs} {
		r, err := measure(w, all, make)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for what, value := range map[string]float64{"per-node query": r.ForNode, "idle tick": r.Idle, "busy tick": r.Busy, "add": r.Add, "delete": r.Delete, "bytes": r.Bytes} {
			if value <= 0 {
				t.Errorf("%s: %s is %v", name, what, value)
			}
		}
	}
}

func TestBars(t *testing.T) {
	good := Run{ForNode: 1, Idle: 1, Busy: 1, Add: 100, Delete: 100, Bytes: 50}
	peer := Run{ForNode: 100, Idle: 1, IdleAllocs: 1, Busy: 1, Add: 100, Delete: 100, Bytes: 100}
	for name, change := range map[string]func(*Run){
		"":                             func(*Run) {},
		"per-node query: times faster": func(r *Run) { r.ForNode = 1.1 },
		"idle tick: allocations":       func(r *Run) { r.IdleAllocs = 0.01 },
		"add: time by theirs":          func(r *Run) { r.Add = 101 },
		"delete: time by theirs":       func(r *Run) { r.Delete = 101 },
		"bytes by theirs":              func(r *Run) { r.Bytes = 51 },
	} {
		mine := good
		change(&mine)
		w := &World{world: world{10_000, 200}, Ours: []Run{mine}, Theirs: []Run{peer}}
		w.summarize()
		w.print(io.Discard)
		for _, b := range w.Bars {
			if b.Met != (b.What != name) {
				t.Errorf("with a miss of %q: %+v", name, b)
			}
		}
		if got := w.Rows[forNode].Theirs; got != (stats.Spread{Median: 100, Min: 100, Max: 100}) {
			t.Errorf("the row of the per-node query: %+v", got)
		}
	}
}
