// Package stats sums up what was measured.
package stats

import (
	"math"
	"slices"
	"time"
)

// Durations are in seconds. Percentiles are by nearest rank: of fewer than a
// hundred samples the 99th is the largest.
type Durations struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Of sums durations up; without any all is zero.
func Of(durations []time.Duration) Durations {
	if len(durations) == 0 {
		return Durations{}
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := func(p float64) float64 {
		return sorted[int(math.Ceil(p*float64(len(sorted))))-1].Seconds()
	}
	return Durations{N: len(sorted), P50: rank(0.50), P99: rank(0.99), Max: sorted[len(sorted)-1].Seconds()}
}

// Spread is of one number over the runs.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf has the mean of the middle two as the median of an even number of
// values; without any all is zero.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (median + sorted[middle-1]) / 2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[len(sorted)-1]}
}
