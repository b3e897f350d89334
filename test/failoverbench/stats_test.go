package main

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestStats(t *testing.T) {
	seconds := func(n int) (all []time.Duration) {
		for _, i := range rand.Perm(n) {
			all = append(all, time.Duration(i+1)*time.Second)
		}
		return all
	}
	for _, want := range []Stats{
		{}, {N: 1, P50: 1, P99: 1, Max: 1}, {N: 2, P50: 1, P99: 2, Max: 2},
		{N: 50, P50: 25, P99: 50, Max: 50}, {N: 100, P50: 50, P99: 99, Max: 100}, {N: 200, P50: 100, P99: 198, Max: 200},
	} {
		if got := statsOf(seconds(want.N)); got != want {
			t.Errorf("of %d: %+v, want %+v", want.N, got, want)
		}
	}
}

// sampleOf is a failover by its times in milliseconds.
func sampleOf(signal, accepted, attached int) Sample {
	s := at(signal)
	return Sample{Signal: &s, Accepted: at(accepted), Attached: at(attached)}
}

func TestBurstBars(t *testing.T) {
	for _, tc := range []struct {
		name    string
		samples []Sample
		want    []float64
		met     []bool
	}{
		{"one by one", []Sample{sampleOf(0, 1500, 0), sampleOf(900, 4900, 0)}, []float64{3, 3}, []bool{true, true}},
		{"one pod is late", []Sample{sampleOf(0, 4500, 0), sampleOf(900, 3000, 0)}, []float64{3.5, 2.6}, []bool{false, true}},
		{"the last is late", []Sample{sampleOf(0, 2000, 0), sampleOf(100, 4200, 0)}, []float64{3.1, 3.1}, []bool{false, false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &Phase{Failovers: tc.samples}
			p.summarize(burstBars)
			for i, b := range p.Bars {
				if b.Seconds != tc.want[i] || b.Met != tc.met[i] {
					t.Errorf("%s: %+v, want %v s, met %t", b.What, b, tc.want[i], tc.met[i])
				}
			}
		})
	}
}

// measured is a result whose one bar is met by the slowest of its failovers, or
// missed.
func measured(slowest int) *Result {
	asked := at(-20)
	p := &Phase{Name: "sequence", Failovers: []Sample{sampleOf(0, 1040, 1800), sampleOf(0, slowest, 1900)}, Drains: []Sample{{Asked: &asked, Accepted: at(0), Attached: at(700)}}}
	p.summarize(sequencePhase(2).bars)
	return &Result{CPUs: 2, ConfirmSeconds: 1, Phases: []*Phase{p}}
}

func TestReport(t *testing.T) {
	for _, tc := range []struct {
		slowest int
		met     bool
		says    string
	}{
		{1100, true, "  met     one at a time"},
		{1101, false, "  NOT MET one at a time"},
	} {
		var out bytes.Buffer
		r := measured(tc.slowest)
		if met := r.printBars(&out); met != tc.met || !strings.Contains(out.String(), tc.says) {
			t.Errorf("slowest %d ms: met=%t, and it says\n%s", tc.slowest, met, &out)
		}
	}
	var out bytes.Buffer
	measured(1090).Phases[0].print(&out)
	for _, want := range []string{
		"signal -> accepted                         2   1.040 s   1.090 s   1.090 s",
		"beyond the confirmation                  2   0.040 s   0.090 s   0.090 s",
		"signal -> attached elsewhere               2   1.800 s   1.900 s   1.900 s",
		"of which accepted -> attached            2   0.760 s   0.810 s   0.810 s",
		"floor: asked -> accepted, drained          1   0.020 s   0.020 s   0.020 s",
		"floor: accepted -> attached, drained       1   0.700 s   0.700 s   0.700 s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no line %q in\n%s", want, &out)
		}
	}
}

func TestSave(t *testing.T) {
	path, want := filepath.Join(t.TempDir(), "failover.json"), measured(1090)
	if err := want.save(path); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := &Result{}
	if err := json.Unmarshal(content, got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}
