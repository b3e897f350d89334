// Package report prints and keeps what the benches measure.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

// Bar is a limit and what was measured against it.
type Bar struct {
	What     string  `json:"what"`
	Limit    string  `json:"limit"`
	Measured float64 `json:"measured"`
	Met      bool    `json:"met"`
}

// AtLeast is met from the limit on.
func AtLeast(what string, measured, limit float64) Bar {
	return Bar{what, fmt.Sprintf("at least %g", limit), measured, measured >= limit}
}

// AtMost is met up to the limit.
func AtMost(what string, measured, limit float64) Bar {
	return Bar{what, fmt.Sprintf("at most %g", limit), measured, measured <= limit}
}

// Exactly holds for every run; it tells of the one that is farthest off.
func Exactly(what string, measured stats.Spread, limit int) Bar {
	bar := Bar{what, fmt.Sprintf("exactly %d", limit), measured.Max, measured.Min == float64(limit) && measured.Max == float64(limit)}
	if measured.Max-float64(limit) < float64(limit)-measured.Min {
		bar.Measured = measured.Min
	}
	return bar
}

// Bars prints the verdicts and reports whether all are met.
func Bars(w io.Writer, bars []Bar) bool {
	met := true
	for _, b := range bars {
		verdict := "MET"
		if !b.Met {
			verdict, met = "NOT MET", false
		}
		_, _ = fmt.Fprintf(w, "  %-8s%s: %.4g, %s\n", verdict, b.What, b.Measured, b.Limit)
	}
	return met
}

// Line is one measure of a table, of each column.
type Line struct {
	What string
	// Format of a number: "%.1f".
	Format string
	Of     []stats.Spread
}

// Head is a line of titles, one of each column.
type Head struct {
	What   string
	Titles []string
}

// Table prints medians with the lowest and the highest.
func Table(w io.Writer, heads []Head, lines []Line) {
	for _, head := range heads {
		_, _ = fmt.Fprintf(w, "\n  %-26s", head.What)
		for _, title := range head.Titles {
			_, _ = fmt.Fprintf(w, " %28s", title)
		}
	}
	for _, line := range lines {
		_, _ = fmt.Fprintf(w, "\n  %-26s", line.What)
		for _, s := range line.Of {
			_, _ = fmt.Fprintf(w, " %28s", fmt.Sprintf(line.Format+" ("+line.Format+" - "+line.Format+")", s.Median, s.Min, s.Max))
		}
	}
	_, _ = fmt.Fprintln(w)
}

// Save writes a result as JSON.
func Save(path string, result any) error {
	content, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(content, '\n'), 0o600)
}
