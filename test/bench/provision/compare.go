package main

import (
	"context"
	"fmt"
	"os"

	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

// comparison lets the sides run in turn.
func comparison(s setting, o options, claims int) plan {
	p := plan{name: s.name, title: s.title, clusterArgs: s.clusterArgs(), latency: o.latency}
	p.measure = func(ctx context.Context, w *stage, phase *Phase) error {
		for i := range o.runs {
			for _, side := range o.who {
				r, err := w.run(ctx, side, s.flagsOf(side), claims)
				if err != nil {
					return fmt.Errorf("run %d of %s: %w", i+1, side.title, err)
				}
				phase.Runs = append(phase.Runs, r)
				progress(os.Stdout, i, side, fmt.Sprintf("%4d claims: %6.1f PVs/s %6.1f bound/s %6.1f deleted/s, %d and %d calls",
					claims, r.Provision.Made.PerSecond, r.Provision.Bound.PerSecond, r.Delete.Gone.PerSecond, r.Creates.Total, r.Deletes.Total))
			}
		}
		return nil
	}
	return p
}

// Row is what a side did over its runs.
type Row struct {
	Side   string `json:"side"`
	Runs   int    `json:"runs"`
	Claims int    `json:"claims"`
	// Figures are the columns by name.
	Figures map[string]stats.Spread `json:"figures"`
}

// column is a figure of every run.
type column struct {
	// name is the figure's in provision.json, what the same for people.
	name, what, format string
	of                 func(*Run) float64
	// programs: the floor has none.
	programs bool
}

// The names of the figures that bars are set on.
const (
	madePerSecond  = "volumesPerSecond"
	boundPerSecond = "boundPerSecond"
	gonePerSecond  = "deletedPerSecond"
	createCalls    = "createVolumeCalls"
	deleteCalls    = "deleteVolumeCalls"
	createMost     = "createVolumeCallsMostOfAVolume"
	createLeast    = "createVolumeCallsLeastOfAVolume"
	deleteMost     = "deleteVolumeCallsMostOfAVolume"
	deleteLeast    = "deleteVolumeCallsLeastOfAVolume"
)

var columns = []column{
	{name: madePerSecond, what: "PVs/s", format: "%.1f", of: func(r *Run) float64 { return r.Provision.Made.PerSecond }},
	{name: boundPerSecond, what: "bound/s", format: "%.1f", of: func(r *Run) float64 { return r.Provision.Bound.PerSecond }},
	{name: gonePerSecond, what: "deleted/s", format: "%.1f", of: func(r *Run) float64 { return r.Delete.Gone.PerSecond }},
	{name: "madeP50Seconds", what: "PV after, p50, s", format: "%.2f", of: func(r *Run) float64 { return r.Provision.Made.Latency.P50 }},
	{name: "madeP99Seconds", what: "PV after, p99, s", format: "%.2f", of: func(r *Run) float64 { return r.Provision.Made.Latency.P99 }},
	{name: "boundP50Seconds", what: "bound after, p50, s", format: "%.2f", of: func(r *Run) float64 { return r.Provision.Bound.Latency.P50 }},
	{name: "boundP99Seconds", what: "bound after, p99, s", format: "%.2f", of: func(r *Run) float64 { return r.Provision.Bound.Latency.P99 }},
	{name: "goneP50Seconds", what: "gone after, p50, s", format: "%.2f", of: func(r *Run) float64 { return r.Delete.Gone.Latency.P50 }},
	{name: "goneP99Seconds", what: "gone after, p99, s", format: "%.2f", of: func(r *Run) float64 { return r.Delete.Gone.Latency.P99 }},
	{name: "emptiedSeconds", what: "driver empty after, s", format: "%.2f", of: func(r *Run) float64 { return r.Delete.Emptied }, programs: true},
	{name: createCalls, what: "CreateVolume calls", format: "%.0f", of: func(r *Run) float64 { return float64(r.Creates.Total) }, programs: true},
	{name: createLeast, what: "  of a volume, least", format: "%.0f", of: func(r *Run) float64 { return float64(r.Creates.Least) }, programs: true},
	{name: createMost, what: "  of a volume, most", format: "%.0f", of: func(r *Run) float64 { return float64(r.Creates.Most) }, programs: true},
	{name: deleteCalls, what: "DeleteVolume calls", format: "%.0f", of: func(r *Run) float64 { return float64(r.Deletes.Total) }, programs: true},
	{name: deleteLeast, what: "  of a volume, least", format: "%.0f", of: func(r *Run) float64 { return float64(r.Deletes.Least) }, programs: true},
	{name: deleteMost, what: "  of a volume, most", format: "%.0f", of: func(r *Run) float64 { return float64(r.Deletes.Most) }, programs: true},
	{name: "writesPerCreate", what: "writes per create", format: "%.2f", of: func(r *Run) float64 { return r.each(r.Provision.Requests.Total) }},
	{name: "writesPerDelete", what: "writes per delete", format: "%.2f", of: func(r *Run) float64 { return r.each(r.Delete.Requests.Total) }},
	{name: "eventsPerVolume", what: "events per volume", format: "%.2f", of: func(r *Run) float64 { return r.each(r.Provision.Requests.Events + r.Delete.Requests.Events) }},
	{name: "readsPerVolume", what: "reads per volume", format: "%.2f", of: func(r *Run) float64 { return r.each(r.Provision.Requests.Reads + r.Delete.Requests.Reads) }},
	{name: "refusedPerVolume", what: "refused per volume", format: "%.2f", of: func(r *Run) float64 { return r.each(r.Provision.Requests.Refused + r.Delete.Requests.Refused) }},
	{name: "managerPerCreate", what: "KCM requests per create", format: "%.2f", of: func(r *Run) float64 { return r.each(all(r.Provision.Manager)) }},
	{name: "managerPerDelete", what: "KCM requests per delete", format: "%.2f", of: func(r *Run) float64 { return r.each(all(r.Delete.Manager)) }},
	{name: "residentMiB", what: "resident memory, MiB", format: "%.0f", of: func(r *Run) float64 { return r.Memory.Resident }, programs: true},
	{name: "peakMiB", what: "peak memory, MiB", format: "%.0f", of: func(r *Run) float64 { return r.Memory.Peak }, programs: true},
	{name: "cpuSeconds", what: "CPU of the side, s", format: "%.2f", of: func(r *Run) float64 { return r.Provision.CPU[r.side.name] + r.Delete.CPU[r.side.name] }, programs: true},
}

func (r *Run) each(n int) float64 { return float64(n) / float64(r.Claims) }

// summarize makes the row of each side.
func (p *Phase) summarize() {
	for _, s := range allSides {
		if row := rowOf(p.Runs, s); row.Runs > 0 {
			p.Rows = append(p.Rows, row)
		}
	}
}

func rowOf(runs []*Run, s side) *Row {
	row := &Row{Side: s.title, Figures: map[string]stats.Spread{}}
	var mine []*Run
	for _, r := range runs {
		if r.Side == s.title {
			mine = append(mine, r)
			row.Claims = r.Claims
		}
	}
	row.Runs = len(mine)
	for _, c := range columns {
		if c.programs && s.key == floor.key {
			continue
		}
		values := make([]float64, 0, len(mine))
		for _, r := range mine {
			values = append(values, c.of(r))
		}
		row.Figures[c.name] = stats.SpreadOf(values)
	}
	return row
}

// times are how many times another side's rates ours must have; without a side
// only the calls of the driver count.
type times struct {
	than                 side
	made, bound, deleted float64
}

var bars = map[string]times{
	"DEFAULT": {floor, 0.95, 0.95, 0.95},
	"TUNED":   {theirs, 2, 1.3, 2},
	// Nobody is known to run either program so.
	"UNLIMITED": {},
}

// judge sets the bars of a phase, if those that it compares have run.
func (p *Phase) judge() {
	if p.Capacity != nil {
		p.Bars = append(p.Bars, p.Capacity.bars(p.Name)...)
	}
	want, set := bars[p.Name]
	if !set {
		return
	}
	mine, other := rowOf(p.Runs, ours), rowOf(p.Runs, want.than)
	if mine.Runs == 0 {
		return
	}
	if other.Runs > 0 {
		for _, rate := range []struct {
			figure, what string
			limit        float64
		}{{madePerSecond, "PVs/s", want.made}, {boundPerSecond, "bound/s", want.bound}, {gonePerSecond, "deleted/s", want.deleted}} {
			p.Bars = append(p.Bars, report.AtLeast(fmt.Sprintf("%s: %s, times those of %s", p.Name, rate.what, want.than.title),
				mine.Figures[rate.figure].Median/other.Figures[rate.figure].Median, rate.limit))
		}
	}
	for _, call := range []struct{ what, total, least, most string }{
		{"CreateVolume", createCalls, createLeast, createMost},
		{"DeleteVolume", deleteCalls, deleteLeast, deleteMost},
	} {
		each := stats.Spread{Median: mine.Figures[call.most].Median, Min: mine.Figures[call.least].Min, Max: mine.Figures[call.most].Max}
		p.Bars = append(p.Bars,
			report.Exactly(fmt.Sprintf("%s: %s calls of each run of %d claims", p.Name, call.what, mine.Claims), mine.Figures[call.total], mine.Claims),
			report.Exactly(fmt.Sprintf("%s: %s calls of each volume", p.Name, call.what), each, 1))
	}
}
