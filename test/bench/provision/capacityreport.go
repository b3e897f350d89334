package main

import (
	"fmt"
	"io"

	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
)

// bars of the runs of ours. The peer's are shown beside.
func (c *Capacity) bars(name string) (bars []report.Bar) {
	for _, r := range c.Runs {
		if r.side.key != ours.key {
			continue
		}
		of := fmt.Sprintf("%s, %d threads: ", name, r.Threads)
		bars = append(bars,
			// Without this one the next could be met by a program that does nothing.
			report.AtLeast(of+"items that the driver has told", float64(r.Objects.Told), 1),
			report.AtMost(of+"items that it has told and that have no object", float64(r.Objects.Missing), 0),
			report.AtMost(of+"second objects of an item", float64(r.Objects.Duplicates), 0),
			report.AtMost(of+"objects of items that it has never told", float64(r.Objects.Strange), 0),
			report.AtMost(fmt.Sprintf("%sitems in the workqueue, of %d", of, c.Items), float64(r.Depth.Most), float64(c.Items)),
		)
	}
	return bars
}

// figures of a run, in the order in which they are printed.
var capacityFigures = []struct {
	what, format string
	of           func(*CapacityRun) float64
}{
	{"items told by the driver", "%.0f", func(r *CapacityRun) float64 { return float64(r.Objects.Told) }},
	{"objects", "%.0f", func(r *CapacityRun) float64 { return float64(r.Objects.Total) }},
	{"  missing", "%.0f", func(r *CapacityRun) float64 { return float64(r.Objects.Missing) }},
	{"  duplicates", "%.0f", func(r *CapacityRun) float64 { return float64(r.Objects.Duplicates) }},
	{"  of items never told", "%.0f", func(r *CapacityRun) float64 { return float64(r.Objects.Strange) }},
	{"in the workqueue, most", "%.0f", func(r *CapacityRun) float64 { return float64(r.Depth.Most) }},
	{"in the workqueue, at last", "%.0f", func(r *CapacityRun) float64 { return float64(r.Depth.Last) }},
	{"GetCapacity calls", "%.0f", func(r *CapacityRun) float64 { return float64(r.Calls) }},
	{"writes", "%.0f", func(r *CapacityRun) float64 { return float64(r.Requests.Total) }},
	{"events", "%.0f", func(r *CapacityRun) float64 { return float64(r.Requests.Events) }},
	{"reads", "%.0f", func(r *CapacityRun) float64 { return float64(r.Requests.Reads) }},
	{"refused", "%.0f", func(r *CapacityRun) float64 { return float64(r.Requests.Refused) }},
	{"CPU of the side, s", "%.2f", func(r *CapacityRun) float64 { return r.CPU }},
	{"resident memory, MiB", "%.0f", func(r *CapacityRun) float64 { return r.Memory.Resident }},
	{"peak memory, MiB", "%.0f", func(r *CapacityRun) float64 { return r.Memory.Peak }},
}

// print shows one run of each side with each number of threads.
func (c *Capacity) print(w io.Writer) {
	_, _ = fmt.Fprintf(w, "\n  %d items: %d segments x %d classes\n  %-26s", c.Items, c.Segments, c.Classes, "")
	for _, r := range c.Runs {
		_, _ = fmt.Fprintf(w, " %28s", r.Side)
	}
	_, _ = fmt.Fprintf(w, "\n  %-26s", "threads")
	for _, r := range c.Runs {
		_, _ = fmt.Fprintf(w, " %28d", r.Threads)
	}
	for _, figure := range capacityFigures {
		_, _ = fmt.Fprintf(w, "\n  %-26s", figure.what)
		for _, r := range c.Runs {
			_, _ = fmt.Fprintf(w, " %28s", fmt.Sprintf(figure.format, figure.of(r)))
		}
	}
	_, _ = fmt.Fprintln(w)
}
