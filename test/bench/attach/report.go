package main

import (
	"fmt"
	"io"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

const preamble = `Attach and detach on a real control plane, ha-sidecar and external-attacher in turn: the same API
server, the same driver, which answers at once, and the same ServiceAccount, that of the chart.
The bench makes and deletes the VolumeAttachments itself, on PersistentVolumes that nobody has
attached before, so kube-controller-manager's attach-detach controller is off; only in MANAGED it is
on, and makes and deletes them for pods of the bench: there is no bar then. ha-sidecar runs with
the chart's flags and its leases, and is measured once --hold-off has passed since its start; until
then it reads each Node before a publish. external-attacher has no election, as is its default.
  attaches/s   number of volumes by the time from before the first create to when a watch tells of the last "attached"
  detaches/s   the same from before the first delete to when the last is gone
  p50, p99     from before the create of one to "attached"; all are asked for at once
  publish, unpublish   calls of the driver for them, from csi_sidecar_operations_seconds
  writes       requests to the API server per volume, from its audit log, leases and events left out
Figures are medians of the runs, with the lowest and the highest. Last in TUNED, the bench makes the
writes of attaches and detaches itself, with no driver and no watch to wait for: no attacher that
writes as much gets beyond that.
`

// Result is attach.json.
type Result struct {
	Started time.Time `json:"started"`
	CPUs    int       `json:"cpus"`
	Phases  []*Phase  `json:"phases"`
}

func (p *Phase) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "  load of the machine: %s before, %s after\n", p.LoadBefore, p.LoadAfter)
	if len(p.Rows) == 0 {
		return
	}
	heads := []report.Head{{}, {What: "runs x volumes"}}
	for _, r := range p.Rows {
		heads[0].Titles = append(heads[0].Titles, r.Side)
		heads[1].Titles = append(heads[1].Titles, fmt.Sprintf("%d x %d", r.Runs, r.Volumes))
	}
	var lines []report.Line
	for _, line := range []struct {
		what, format string
		of           func(*Row) stats.Spread
	}{
		{"attaches/s", "%.1f", func(r *Row) stats.Spread { return r.Attach }},
		{"detaches/s", "%.1f", func(r *Row) stats.Spread { return r.Detach }},
		{"attached after, p50, s", "%.2f", func(r *Row) stats.Spread { return r.AttachP50 }},
		{"attached after, p99, s", "%.2f", func(r *Row) stats.Spread { return r.AttachP99 }},
		{"gone after, p50, s", "%.2f", func(r *Row) stats.Spread { return r.DetachP50 }},
		{"gone after, p99, s", "%.2f", func(r *Row) stats.Spread { return r.DetachP99 }},
		{"publish calls", "%.0f", func(r *Row) stats.Spread { return r.Publish }},
		{"unpublish calls", "%.0f", func(r *Row) stats.Spread { return r.Unpublish }},
		{"writes per attach", "%.2f", func(r *Row) stats.Spread { return r.AttachWrite }},
		{"writes per detach", "%.2f", func(r *Row) stats.Spread { return r.DetachWrite }},
		{"events per volume", "%.2f", func(r *Row) stats.Spread { return r.Events }},
		{"reads per volume", "%.2f", func(r *Row) stats.Spread { return r.Reads }},
		{"resident memory, MiB", "%.0f", func(r *Row) stats.Spread { return r.Resident }},
	} {
		l := report.Line{What: line.what, Format: line.format}
		for _, r := range p.Rows {
			l.Of = append(l.Of, line.of(r))
		}
		lines = append(lines, l)
	}
	report.Table(w, heads, lines)
	if f := p.Floor; f != nil {
		_, _ = fmt.Fprintf(w, "\n  The writes alone, made by the bench: %.1f attaches/s (%.1f - %.1f), %.1f detaches/s (%.1f - %.1f)\n",
			f.Attach.Median, f.Attach.Min, f.Attach.Max, f.Detach.Median, f.Detach.Min, f.Detach.Max)
	}
}

// printBars prints the verdicts and reports whether all bars are met.
func (r *Result) printBars(w io.Writer) bool {
	_, _ = fmt.Fprintf(w, "\nBars, on %d CPUs:\n", r.CPUs)
	var bars []report.Bar
	for _, p := range r.Phases {
		bars = append(bars, p.Bars...)
	}
	return report.Bars(w, bars)
}
