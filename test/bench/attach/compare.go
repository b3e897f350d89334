package main

import (
	"context"
	"fmt"
	"io"

	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

// ratios are how many times the rate of external-attacher ours must have.
type ratios struct{ attach, detach float64 }

var bars = map[string]ratios{
	shipped.name: {25, 25},
	tuned.name:   {1.5, 1.9},
}

// share is how many runs of how many volumes a side makes.
type share struct{ runs, volumes int }

// comparison lets both sides run in turn.
func comparison(s setting, mine, peer share, progress io.Writer) plan {
	p := plan{name: s.name, title: s.title, volumes: max(mine.volumes, peer.volumes)}
	p.config.ClusterArgs = s.clusterArgs()
	p.measure = func(ctx context.Context, w *stage, phase *Phase) error {
		for i := range max(mine.runs, peer.runs) {
			for _, turn := range []struct {
				side side
				share
			}{{ours, mine}, {theirs, peer}} {
				if i >= turn.runs {
					continue
				}
				r, err := w.run(ctx, turn.side, s, turn.volumes)
				if err != nil {
					return fmt.Errorf("run %d of %s: %w", i+1, turn.side.title, err)
				}
				phase.Runs = append(phase.Runs, r)
				_, _ = fmt.Fprintf(progress, "  run %d of %-21s %4d volumes: %7.1f attaches/s %7.1f detaches/s\n", i+1, r.Side, r.Volumes, r.Attach.PerSecond, r.Detach.PerSecond)
			}
		}
		if !s.floor {
			return nil
		}
		var err error
		phase.Floor, err = w.floor(ctx, mine.volumes, mine.runs, progress)
		return err
	}
	return p
}

// Row is what a side did over its runs.
type Row struct {
	Side    string `json:"side"`
	Runs    int    `json:"runs"`
	Volumes int    `json:"volumes"`

	Attach      stats.Spread `json:"attachesPerSecond"`
	Detach      stats.Spread `json:"detachesPerSecond"`
	AttachP50   stats.Spread `json:"attachP50Seconds"`
	AttachP99   stats.Spread `json:"attachP99Seconds"`
	DetachP50   stats.Spread `json:"detachP50Seconds"`
	DetachP99   stats.Spread `json:"detachP99Seconds"`
	Publish     stats.Spread `json:"publishCalls"`
	Unpublish   stats.Spread `json:"unpublishCalls"`
	AttachWrite stats.Spread `json:"writesPerAttach"`
	DetachWrite stats.Spread `json:"writesPerDetach"`
	Events      stats.Spread `json:"eventsPerVolume"`
	Reads       stats.Spread `json:"readsPerVolume"`
	Resident    stats.Spread `json:"residentMiB"`
}

// summarize makes the row of each side.
func (p *Phase) summarize() {
	for _, s := range []side{ours, theirs} {
		if row := rowOf(p.Runs, s); row.Runs > 0 {
			p.Rows = append(p.Rows, row)
		}
	}
}

func rowOf(runs []*Run, s side) *Row {
	row := &Row{Side: s.title}
	var mine []*Run
	for _, r := range runs {
		if r.Side == s.title {
			mine = append(mine, r)
			row.Volumes = r.Volumes
		}
	}
	row.Runs = len(mine)
	for _, column := range []struct {
		into *stats.Spread
		of   func(*Run) float64
	}{
		{&row.Attach, func(r *Run) float64 { return r.Attach.PerSecond }},
		{&row.Detach, func(r *Run) float64 { return r.Detach.PerSecond }},
		{&row.AttachP50, func(r *Run) float64 { return r.Attach.Latency.P50 }},
		{&row.AttachP99, func(r *Run) float64 { return r.Attach.Latency.P99 }},
		{&row.DetachP50, func(r *Run) float64 { return r.Detach.Latency.P50 }},
		{&row.DetachP99, func(r *Run) float64 { return r.Detach.Latency.P99 }},
		{&row.Publish, func(r *Run) float64 { return float64(r.Attach.Calls) }},
		{&row.Unpublish, func(r *Run) float64 { return float64(r.Detach.Calls) }},
		{&row.AttachWrite, func(r *Run) float64 { return r.perVolume(r.Attach.Requests.Total) }},
		{&row.DetachWrite, func(r *Run) float64 { return r.perVolume(r.Detach.Requests.Total) }},
		{&row.Events, func(r *Run) float64 { return r.perVolume(r.Attach.Requests.Events + r.Detach.Requests.Events) }},
		{&row.Reads, func(r *Run) float64 { return r.perVolume(r.Attach.Requests.Reads + r.Detach.Requests.Reads) }},
		{&row.Resident, func(r *Run) float64 { return r.ResidentMiB }},
	} {
		values := make([]float64, 0, len(mine))
		for _, r := range mine {
			values = append(values, column.of(r))
		}
		*column.into = stats.SpreadOf(values)
	}
	return row
}

func (r *Run) perVolume(n int) float64 { return float64(n) / float64(r.Volumes) }

// judge sets the bars of a comparison.
func (p *Phase) judge() {
	mine, peer := rowOf(p.Runs, ours), rowOf(p.Runs, theirs)
	if mine.Runs == 0 || peer.Runs == 0 {
		return
	}
	want, set := bars[p.Name]
	if !set {
		return
	}
	p.Bars = append(p.Bars,
		report.AtLeast(fmt.Sprintf("%s: attaches/s, times those of %s", p.Name, theirs.title), mine.Attach.Median/peer.Attach.Median, want.attach),
		report.AtLeast(fmt.Sprintf("%s: detaches/s, times those of %s", p.Name, theirs.title), mine.Detach.Median/peer.Detach.Median, want.detach),
		report.Exactly(fmt.Sprintf("%s: ControllerPublishVolume calls of each run of %d volumes", p.Name, mine.Volumes), mine.Publish, mine.Volumes),
		report.Exactly(fmt.Sprintf("%s: ControllerUnpublishVolume calls of each run of %d volumes", p.Name, mine.Volumes), mine.Unpublish, mine.Volumes),
	)
}
