package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// sample are the points that are played in every run of the tests: what the
// driver did and nobody recorded, and what was recorded and not yet done.
var sample = map[string][]string{
	"attach and detach":        {"ControllerPublishVolume #1 reply lost", "patch volumeattachments #2 before"},
	"fence":                    {"ControllerUnpublishVolume #1 reply lost"},
	"provision and delete":     {"CreateVolume #1 reply lost", "DeleteVolume #1 reply lost"},
	"provision, claim deleted": {"CreateVolume #1 reply lost"},
}

// result is a line of the report.
type result struct {
	Scenario string `json:"scenario"`
	Point    point  `json:"point"`
	Phase    phase  `json:"phase"`
	// Played: the process died there, and the play came to its end.
	Played bool `json:"played"`
	verdict
	Seconds float64 `json:"seconds"`
}

// TestKilledAtEveryPoint first plays each scenario without a death, to see which
// requests it is made of, and then once for each of them and each phase. A
// request that is not in every play, such as one that is made again after a
// conflict, is no point.
func TestKilledAtEveryPoint(t *testing.T) {
	w := startWorld(t)
	var results []result
	for i, s := range scenarios {
		points := w.record(t, s, fmt.Sprintf("s%d-first", i))
		second := w.record(t, s, fmt.Sprintf("s%d-second", i))
		points = slices.DeleteFunc(points, func(p point) bool { return !slices.Contains(second, p) })
		if len(points) == 0 {
			t.Fatalf("%s: no request was seen", s.name)
		}
		for j, p := range points {
			for k, ph := range phases {
				if !*all && !sampled(s, p, ph) {
					continue
				}
				r := result{Scenario: s.name, Point: p, Phase: ph}
				t.Run(fmt.Sprintf("%s/%s %s", s.name, p, ph), func(t *testing.T) {
					w.dieAt(t, s, &r, fmt.Sprintf("s%d-p%d-%d", i, j, k))
				})
				results = append(results, r)
			}
		}
	}
	if !*all {
		want := 0
		for _, list := range sample {
			want += len(list)
		}
		if len(results) != want {
			t.Errorf("%d points of the sample were played, want %d: %v", len(results), want, results)
		}
	}
	report(t, results)
}

func sampled(s scenario, p point, ph phase) bool {
	for _, want := range sample[s.name] {
		if want == p.String()+" "+string(ph) {
			return true
		}
	}
	return false
}

// record plays without a death and returns the points.
func (w *world) record(t *testing.T, s scenario, name string) (points []point) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), playBound, fmt.Errorf("playing %s took longer than %v", s.name, playBound))
	defer cancel()
	began := time.Now()
	w.trap.set(point{}, "", nil)
	s.play(ctx, t, w, name)
	for _, p := range w.trap.clear() {
		if s.has(p) {
			points = append(points, p)
		}
	}
	v, err := w.check(ctx, name, began)
	if err != nil || v != (verdict{}) {
		t.Fatalf("without a death: %+v, %v", v, err)
	}
	return points
}

// reachTries is how often a point is played that is not reached: the hold of a
// node, say, is written once or twice, as its pods and volumes leave together or
// one after the other.
const reachTries = 4

func (w *world) dieAt(t *testing.T, s scenario, r *result, name string) {
	t.Helper()
	for i := range reachTries {
		if w.die(t, s, r, fmt.Sprintf("%s-%d", name, i)) {
			return
		}
	}
	t.Errorf("%s was not reached in %d plays", r.Point, reachTries)
}

// die plays with a death at the point; the process that goes on is started as
// soon as the other is dead. It reports whether the point was reached.
func (w *world) die(t *testing.T, s scenario, r *result, name string) (reached bool) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), playBound, fmt.Errorf("it took longer than %v", playBound))
	defer cancel()
	began := time.Now()
	victim := w.sidecar
	sprung := w.trap.set(r.Point, r.Phase, func() {
		victim.Kill()
		<-victim.Done()
	})
	over, replaced := make(chan struct{}), make(chan error, 1)
	go func() {
		select {
		case <-sprung:
		case <-over:
			if !closed(sprung) {
				replaced <- nil
				return
			}
		}
		var err error
		if s.dead != nil {
			err = s.dead(ctx, w, name)
		}
		replaced <- errors.Join(err, w.goesOn(ctx))
	}()
	var err error
	func() {
		// Also when the play ends the test.
		defer func() { w.trap.settle(); close(over); err = <-replaced }()
		s.play(ctx, t, w, name)
	}()
	if err != nil {
		t.Fatal(err)
	}
	w.trap.clear()
	r.Played = closed(sprung)
	if r.verdict, err = w.check(ctx, name, began); err != nil {
		t.Fatal(err)
	}
	if r.verdict != (verdict{}) {
		t.Errorf("%+v", r.verdict)
	}
	r.Seconds = time.Since(began).Seconds()
	return r.Played
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func report(t *testing.T, results []result) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "\n%-24s %-36s %-10s  W1   W2   I10  seconds\n", "", "killed at", "")
	for _, r := range results {
		fmt.Fprintf(&b, "%-24s %-36s %-10s %s %s %s %6.1f\n", r.Scenario, r.Point, r.Phase, r.word(r.W1), r.word(r.W2), r.word(r.I10), r.Seconds)
	}
	t.Log(b.String())
	if *out == "" {
		return
	}
	content, err := json.MarshalIndent(results, "", "  ")
	if err == nil {
		err = os.MkdirAll(*out, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(*out, "faults.json"), append(content, '\n'), 0o600)
	}
	if err != nil {
		t.Error(err)
	}
}

// word says nothing of a play that was none.
func (r *result) word(violation string) string {
	switch {
	case violation != "":
		return "LOST"
	case r.Played:
		return "held"
	default:
		return "----"
	}
}
