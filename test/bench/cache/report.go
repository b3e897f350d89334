package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

// errMissed tells that all was measured and a bar was missed.
var errMissed = errors.New("a bar is missed")

type options struct {
	out           string
	runs, largest int
}

const preamble = `The actual state of the world: pkg/attach/cache in mode Modern beside the package of Kubernetes 1.37.2,
the same attachments in both, in turn. Figures are medians of the runs, with the lowest and the highest.
  per-node query   GetAttachedVolumesForNode
  idle tick        GetVolumesToReportAttached while no node is to be reported; busy: one node is made so and reported
  add, delete      of one attachment among the others, by its name
  bytes            of the heap for each attachment, without name, spec and device path, which the caller has
`

// Result is cache.json.
type Result struct {
	Started time.Time `json:"started"`
	CPUs    int       `json:"cpus"`
	Go      string    `json:"go"`
	Worlds  []*World  `json:"worlds"`
}

// World is what was measured in one.
type World struct {
	world
	Ours   []Run  `json:"ours"`
	Theirs []Run  `json:"kubernetes"`
	Rows   []*Row `json:"rows"`
	Bars   []Bar  `json:"bars"`
}

// Row is a line of the table.
type Row struct {
	What   string       `json:"what"`
	Ours   stats.Spread `json:"ours"`
	Theirs stats.Spread `json:"kubernetes"`
}

// Bar is a limit and what was measured against it.
type Bar struct {
	What     string  `json:"what"`
	Limit    string  `json:"limit"`
	Measured float64 `json:"measured"`
	Met      bool    `json:"met"`
}

// The rows, by their places in World.Rows.
const (
	forNode = iota
	idle
	idleAllocs
	busy
	add
	remove
	bytes
)

func (w *World) summarize() {
	for _, c := range []struct {
		what string
		of   func(Run) float64
	}{
		{"per-node query, ns", func(r Run) float64 { return r.ForNode }},
		{"idle tick, ns", func(r Run) float64 { return r.Idle }},
		{"idle tick, allocations", func(r Run) float64 { return r.IdleAllocs }},
		{"busy tick, ns", func(r Run) float64 { return r.Busy }},
		{"add, ns", func(r Run) float64 { return r.Add }},
		{"delete, ns", func(r Run) float64 { return r.Delete }},
		{"bytes", func(r Run) float64 { return r.Bytes }},
	} {
		w.Rows = append(w.Rows, &Row{c.what, stats.SpreadOf(pick(w.Ours, c.of)), stats.SpreadOf(pick(w.Theirs, c.of))})
	}
	ratio := func(row int) float64 { return w.Rows[row].Ours.Median / w.Rows[row].Theirs.Median }
	if w.Attachments >= 10_000 {
		faster := 1 / ratio(forNode)
		w.Bars = append(w.Bars, Bar{"per-node query: times faster", "at least 100", faster, faster >= 100})
	}
	w.Bars = append(w.Bars,
		Bar{"idle tick: allocations", "at most 0", w.Rows[idleAllocs].Ours.Max, w.Rows[idleAllocs].Ours.Max == 0},
		atMost("add: time by theirs", ratio(add), 1),
		atMost("delete: time by theirs", ratio(remove), 1),
		atMost("bytes by theirs", ratio(bytes), 0.5),
	)
}

func atMost(what string, measured, limit float64) Bar {
	return Bar{what, fmt.Sprintf("at most %g", limit), measured, measured <= limit}
}

func pick(runs []Run, of func(Run) float64) []float64 {
	values := make([]float64, 0, len(runs))
	for _, r := range runs {
		values = append(values, of(r))
	}
	return values
}

func (w *World) print(out io.Writer) {
	_, _ = fmt.Fprintf(out, "\n%v, up to %d on a node\n", w.world, w.perNode())
	_, _ = fmt.Fprintf(out, "  %-24s %30s %36s %8s\n", "", "ours", "Kubernetes", "ratio")
	show := func(s stats.Spread) string { return fmt.Sprintf("%.4g (%.4g - %.4g)", s.Median, s.Min, s.Max) }
	for _, r := range w.Rows {
		times := "-"
		if r.Ours.Median > 0 {
			times = fmt.Sprintf("%.2f", r.Theirs.Median/r.Ours.Median)
		}
		_, _ = fmt.Fprintf(out, "  %-24s %30s %36s %8s\n", r.What, show(r.Ours), show(r.Theirs), times)
	}
	for _, b := range w.Bars {
		verdict := "met"
		if !b.Met {
			verdict = "NOT MET"
		}
		_, _ = fmt.Fprintf(out, "  %-8s%s: %.3g, %s\n", verdict, b.What, b.Measured, b.Limit)
	}
}

func run(o options) error {
	result := &Result{Started: time.Now(), CPUs: runtime.NumCPU(), Go: runtime.Version()}
	fmt.Print(preamble)
	met := true
	for _, size := range worlds {
		if size.Attachments > o.largest {
			continue
		}
		w := &World{world: size}
		all := attachments(size.Attachments, size.Nodes)
		for range o.runs {
			mine, err := measure(size, all, newOurs)
			if err != nil {
				return fmt.Errorf("measuring ours with %v: %w", size, err)
			}
			peer, err := measure(size, all, newTheirs)
			if err != nil {
				return fmt.Errorf("measuring Kubernetes' with %v: %w", size, err)
			}
			w.Ours, w.Theirs = append(w.Ours, mine), append(w.Theirs, peer)
		}
		w.summarize()
		w.print(os.Stdout)
		result.Worlds = append(result.Worlds, w)
		for _, b := range w.Bars {
			met = met && b.Met
		}
	}
	if err := result.save(filepath.Join(o.out, "cache.json")); err != nil {
		return err
	}
	if !met {
		return errMissed
	}
	return nil
}

func (r *Result) save(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, append(content, '\n'), 0o600))
}
