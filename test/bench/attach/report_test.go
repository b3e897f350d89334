package main

import (
	"strings"
	"testing"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

// runOf is a run of 500 volumes.
func runOf(s side, attach, detach float64, calls int) *Run {
	return &Run{
		Side: s.title, side: s, Volumes: 500, ResidentMiB: 40,
		Attach: Burst{PerSecond: attach, Calls: calls, Requests: audit.Requests{Total: 1500}},
		Detach: Burst{PerSecond: detach, Calls: 500, Requests: audit.Requests{Total: 500}},
	}
}

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name           string
		attach, detach float64
		calls          int
		missed         string
	}{
		{"all met", 150, 190, 500, ""},
		{"slow attach", 149, 190, 500, "attaches/s"},
		{"slow detach", 150, 189, 500, "detaches/s"},
		{"a call too many", 150, 190, 501, "ControllerPublishVolume"},
		{"a call too few", 150, 190, 499, "ControllerPublishVolume"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &Phase{Name: tuned.name}
			for range 5 {
				p.Runs = append(p.Runs, runOf(ours, tc.attach, tc.detach, 500), runOf(theirs, 100, 100, 800))
			}
			p.Runs[0].Attach.Calls = tc.calls // one run is enough
			p.summarize()
			p.judge()
			var out strings.Builder
			result := &Result{Phases: []*Phase{p}}
			if met := result.printBars(&out); met != (tc.missed == "") {
				t.Errorf("met %t:\n%s", met, out.String())
			}
			for line := range strings.Lines(out.String()) {
				if missed := strings.Contains(line, "NOT MET"); missed != (tc.missed != "" && strings.Contains(line, tc.missed)) {
					t.Errorf("unexpected: %s", line)
				}
			}
		})
	}
}

func TestReport(t *testing.T) {
	p := &Phase{Name: tuned.name, Runs: []*Run{runOf(ours, 200, 300, 500), runOf(ours, 100, 400, 500), runOf(ours, 300, 500, 500), runOf(theirs, 100, 100, 800)}}
	p.summarize()
	if got, want := p.Rows[0].Attach, (stats.Spread{Median: 200, Min: 100, Max: 300}); got != want {
		t.Errorf("attaches/s %+v, want %+v", got, want)
	}
	var out strings.Builder
	p.print(&out)
	for _, want := range []string{"3 x 500", "1 x 500", "200.0 (100.0 - 300.0)", "3.00 (3.00 - 3.00)", "800 (800 - 800)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
