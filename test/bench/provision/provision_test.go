package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
)

func TestRateOf(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds ...int) (all []time.Time) {
		for _, s := range seconds {
			all = append(all, begun.Add(time.Duration(s)*time.Second))
		}
		return all
	}
	rate, last := rateOf(begun, at(0, 1, 1), at(4, 6, 3))
	if want := (Rate{PerSecond: 0.5, Latency: stats.Durations{N: 3, P50: 4, P99: 5, Max: 5}}); rate != want || !last.Equal(begun.Add(6*time.Second)) {
		t.Errorf("%+v until %v, want %+v until 6 s", rate, last, want)
	}
	if rate, _ := rateOf(begun, nil, nil); rate != (Rate{}) {
		t.Errorf("of none: %+v", rate)
	}
}

// runOf is a run of 500 claims with one call of each kind for each.
func runOf(s side, made, bound, deleted float64) *Run {
	once := csidriver.Calls{Total: 500, Least: 1, Most: 1}
	r := &Run{Side: s.title, side: s, Claims: 500, Creates: once, Deletes: once, Memory: usage.Memory{Resident: 40, Peak: 60}}
	r.Provision.Made.PerSecond, r.Provision.Bound.PerSecond, r.Delete.Gone.PerSecond = made, bound, deleted
	r.Provision.Requests = audit.Requests{Total: 500, Kinds: map[string]int{"create persistentvolumes": 500}}
	r.Provision.CPU, r.Delete.CPU = usage.CPU{s.name: 1.5, "other": 9}, usage.CPU{s.name: 0.5}
	return r
}

func TestJudge(t *testing.T) {
	met := [3]float64{200, 130, 200}
	for _, tc := range []struct {
		name, phase string
		rates       [3]float64
		change      func(*Run)
		missed      string
	}{
		{"tuned", "TUNED", met, nil, ""},
		{"slow to make", "TUNED", [3]float64{199, 130, 200}, nil, "PVs/s"},
		{"slow to bind", "TUNED", [3]float64{200, 129, 200}, nil, "bound/s"},
		{"slow to delete", "TUNED", [3]float64{200, 130, 199}, nil, "deleted/s"},
		{"a call too many for one", "TUNED", met, func(r *Run) { r.Creates = csidriver.Calls{Total: 501, Least: 1, Most: 2} }, "CreateVolume"},
		{"none for one, two for another", "TUNED", met, func(r *Run) { r.Deletes = csidriver.Calls{Total: 500, Least: 0, Most: 2} }, "DeleteVolume calls of each volume"},
		{"a call for a stranger", "TUNED", met, func(r *Run) { r.Deletes.Total++ }, "DeleteVolume calls of each run"},
		{"default", "DEFAULT", [3]float64{9.5, 9.5, 9.5}, nil, ""},
		{"below the floor", "DEFAULT", [3]float64{9.5, 9.4, 9.5}, nil, "bound/s"},
		{"slow, and nobody asks", "UNLIMITED", [3]float64{1, 1, 1}, nil, ""},
		{"a call too many without a limit", "UNLIMITED", met, func(r *Run) { r.Creates.Total++ }, "CreateVolume calls of each run"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &Phase{Name: tc.phase}
			for range 3 {
				p.Runs = append(p.Runs, runOf(ours, tc.rates[0], tc.rates[1], tc.rates[2]), runOf(theirs, 100, 100, 100), runOf(floor, 10, 10, 10))
			}
			if tc.change != nil {
				tc.change(p.Runs[0]) // one run is enough
			}
			p.summarize()
			p.judge()
			var out strings.Builder
			if met := (&Result{Phases: []*Phase{p}}).printBars(&out); met != (tc.missed == "") {
				t.Errorf("met %t:\n%s", met, out.String())
			}
			for line := range strings.Lines(out.String()) {
				if missed := strings.Contains(line, "NOT MET"); missed != (tc.missed != "" && strings.Contains(line, tc.missed)) {
					t.Errorf("unexpected: %s", line)
				}
			}
			want := 7
			if tc.phase == "UNLIMITED" {
				want = 4 // no speeds
			}
			if len(p.Bars) != want {
				t.Errorf("%d bars, want %d", len(p.Bars), want)
			}
		})
	}
}

// TestNothingToJudge: without ha-sidecar no bar is met and none is missed.
func TestNothingToJudge(t *testing.T) {
	p := &Phase{Name: "TUNED", Runs: []*Run{runOf(theirs, 1, 1, 1), runOf(floor, 1, 1, 1)}}
	p.summarize()
	p.judge()
	var out strings.Builder
	if met := (&Result{Phases: []*Phase{p}}).printBars(&out); !met || len(p.Bars) != 0 || !strings.Contains(out.String(), "none could be judged") {
		t.Errorf("met %t, %v, %s", met, p.Bars, out.String())
	}
}

func TestPrint(t *testing.T) {
	p := &Phase{Name: "TUNED", Runs: []*Run{runOf(ours, 200, 20, 2), runOf(ours, 100, 10, 1), runOf(ours, 300, 30, 3), runOf(floor, 50, 5, 5)}}
	p.Runs[0].Provision.Requests.Kinds = map[string]int{"create persistentvolumes": 1000, "patch persistentvolumes": 500}
	p.summarize()
	var out strings.Builder
	p.print(&out)
	for _, want := range []string{"3 x 500", "1 x 500", "200.0 (100.0 - 300.0)", "1.00 (1.00 - 1.00)", "500 (500 - 500)", "40 (40 - 40)", "2.00 (2.00 - 2.00)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	got := kinds(p.Runs[:3], func(r *Run) audit.Requests { return r.Provision.Requests })
	want := []kind{{"create persistentvolumes", stats.Spread{Median: 1, Min: 1, Max: 2}}, {"patch persistentvolumes", stats.Spread{Median: 0, Min: 0, Max: 1}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(kind{})); diff != "" {
		t.Errorf("kinds: want -, got +\n%s", diff)
	}
	if _, found := p.Rows[1].Figures["residentMiB"]; found {
		t.Error("the floor has memory")
	}
	out.Reset()
	(&Memory{Pairs: 7, Sides: []SideMemory{sideMemory(ours, []usage.Memory{{Resident: 1, Peak: 4}, {Resident: 3, Peak: 6}})}}).print(&out)
	for _, want := range []string{"2 beside 7", "2.0 (1.0 - 3.0)", "5.0 (4.0 - 6.0)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestOptions(t *testing.T) {
	good := options{runs: 1, claims: 2, shipped: 3, memory: 4, segments: 5, capacity: time.Minute}
	plans, err := good.check()
	if err != nil || len(plans) != len(settings) || len(good.who) != len(allSides) {
		t.Errorf("%d plans, %v, %v", len(plans), good.who, err)
	}
	some := good
	some.only, some.sides = "TUNED", "peer, ours"
	if plans, err = some.check(); err != nil || len(plans) != 1 || plans[0].name != "TUNED" || len(some.who) != 2 || some.who[0].key != "ours" {
		t.Errorf("%v, %v, %v", plans, some.who, err)
	}
	if args := strings.Join(plans[0].clusterArgs, " "); !strings.Contains(args, "kube-controller-manager=--kube-api-qps=1000") {
		t.Errorf("arguments %s", args)
	}
	for want, change := range map[string]func(*options){
		"--runs":          func(o *options) { o.runs = 0 },
		"--memory":        func(o *options) { o.memory = math.MinInt },
		"--latency":       func(o *options) { o.latency = -1 },
		"--only":          func(o *options) { o.only = "TUNED,OTHER" },
		"--segments":      func(o *options) { o.segments = 0 },
		"--capacity-time": func(o *options) { o.capacity = time.Millisecond },
		"--sides":         func(o *options) { o.sides = "us" },
	} {
		bad := good
		change(&bad)
		if _, err := bad.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want a word of %s", err, want)
		}
	}
}

func TestBinding(t *testing.T) {
	for agent, want := range map[string]bool{
		"kube-controller-manager/v1.37.2 (linux/amd64) kubernetes/x/system:serviceaccount:kube-system:persistent-volume-binder": true,
		"kube-controller-manager/v1.37.2 (linux/amd64) kubernetes/x/system:serviceaccount:kube-system:namespace-controller":     false,
		"csi-provisioner/v6 (linux/amd64) kubernetes/x/system:serviceaccount:kube-system:persistent-volume-binder":              false,
	} {
		if got := binding(&audit.Request{UserAgent: agent}); got != want {
			t.Errorf("%s: %t", agent, got)
		}
	}
}
