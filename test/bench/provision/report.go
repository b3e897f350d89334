package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

const preamble = `Provisioning on a real control plane, in turn: ha-sidecar, external-provisioner, and the floor, which is
the bench itself: it creates a PersistentVolume as soon as kube-controller-manager has given the claim its
provisioner, and deletes it as soon as that releases it; no driver, no events, no limit. Both programs have the
same API server and the same driver, which counts the calls, and run as the cluster's administrator;
ha-sidecar with its lease, csi-provisioner without, as are their defaults. The StorageClass binds at once.
A first volume comes and goes before anything is timed. All claims are created as fast as the server takes
them, and deleted so once nobody writes any more.
  PVs/s        number of claims by the time from before the first create to when a watch tells of the last volume
  bound/s      the same to when it tells of the last bound claim
  deleted/s    the same from before the first delete of a claim to when the last PersistentVolume is gone
  p50, p99     from before the request for one claim to its outcome; all are asked for at once
  calls        of the driver over the whole run
  writes       requests to the API server per volume, from its audit log, leases, reads and events left out
  KCM          all requests of kube-controller-manager's binder and its protection of claims and volumes
Figures are medians of the runs, with the lowest and the highest.
`

// Result is provision.json.
type Result struct {
	Started time.Time `json:"started"`
	CPUs    int       `json:"cpus"`
	// Latency of the driver, in seconds.
	Latency float64  `json:"driverLatencySeconds"`
	Phases  []*Phase `json:"phases"`
}

func (p *Phase) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "  load of the machine: %s before, %s after\n", p.LoadBefore, p.LoadAfter)
	p.printRows(w)
	p.printKinds(w)
	if p.Memory != nil {
		p.Memory.print(w)
	}
	if p.Capacity != nil {
		p.Capacity.print(w)
	}
}

func (p *Phase) printRows(w io.Writer) {
	if len(p.Rows) == 0 {
		return
	}
	heads := []report.Head{{}, {What: "runs x claims"}}
	for _, r := range p.Rows {
		heads[0].Titles = append(heads[0].Titles, r.Side)
		heads[1].Titles = append(heads[1].Titles, fmt.Sprintf("%d x %d", r.Runs, r.Claims))
	}
	lines := make([]report.Line, 0, len(columns))
	for _, c := range columns {
		line := report.Line{What: c.what, Format: c.format}
		for _, r := range p.Rows {
			// The floor has the last column, and no figure where a program is needed.
			if figure, found := r.Figures[c.name]; found {
				line.Of = append(line.Of, figure)
			}
		}
		lines = append(lines, line)
	}
	report.Table(w, heads, lines)
}

// all counts the writes, the events and the reads.
func all(r audit.Requests) int { return r.Total + r.Events + r.Reads }

// printKinds tells what each side and kube-controller-manager ask for a volume.
func (p *Phase) printKinds(w io.Writer) {
	for _, s := range allSides {
		var runs []*Run
		for _, r := range p.Runs {
			if r.Side == s.title {
				runs = append(runs, r)
			}
		}
		if len(runs) == 0 {
			continue
		}
		for _, part := range []struct {
			what string
			of   func(*Run) audit.Requests
		}{
			{"create, " + s.title, func(r *Run) audit.Requests { return r.Provision.Requests }},
			{"create, KCM", func(r *Run) audit.Requests { return r.Provision.Manager }},
			{"delete, " + s.title, func(r *Run) audit.Requests { return r.Delete.Requests }},
			{"delete, KCM", func(r *Run) audit.Requests { return r.Delete.Manager }},
		} {
			_, _ = fmt.Fprintf(w, "\n  requests per %s:", part.what)
			for _, kind := range kinds(runs, part.of) {
				_, _ = fmt.Fprintf(w, "\n    %-44s %6.2f", kind.what, kind.each.Median)
			}
		}
		_, _ = fmt.Fprintln(w)
	}
}

type kind struct {
	what string
	each stats.Spread
}

// kinds are the requests per volume, by verb and resource; a run that has none of
// a kind counts as none.
func kinds(runs []*Run, of func(*Run) audit.Requests) (all []kind) {
	names := map[string]bool{}
	for _, r := range runs {
		for name := range of(r).Kinds {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		var values []float64
		for _, r := range runs {
			values = append(values, r.each(of(r).Kinds[name]))
		}
		all = append(all, kind{name, stats.SpreadOf(values)})
	}
	return all
}

func (m *Memory) print(w io.Writer) {
	heads := []report.Head{{}, {What: "runs beside pairs"}}
	resident, peak := report.Line{What: "resident memory, MiB", Format: "%.1f"}, report.Line{What: "peak memory, MiB", Format: "%.1f"}
	for _, s := range m.Sides {
		heads[0].Titles = append(heads[0].Titles, s.Side)
		heads[1].Titles = append(heads[1].Titles, fmt.Sprintf("%d beside %d", s.Runs, m.Pairs))
		resident.Of, peak.Of = append(resident.Of, s.Resident), append(peak.Of, s.Peak)
	}
	report.Table(w, heads, []report.Line{resident, peak})
}

// printBars prints the verdicts and reports whether all bars are met.
func (r *Result) printBars(w io.Writer) bool {
	_, _ = fmt.Fprintf(w, "\nBars, on %d CPUs:\n", r.CPUs)
	var bars []report.Bar
	for _, p := range r.Phases {
		bars = append(bars, p.Bars...)
	}
	if len(bars) == 0 {
		_, _ = fmt.Fprintln(w, "  none could be judged: they need ha-sidecar, and whom it is compared with")
	}
	return report.Bars(w, bars)
}
