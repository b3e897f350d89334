package main

import (
	"math"
	"slices"
	"time"
)

// Sample is one move, by the API server's clock.
type Sample struct {
	Pod  string `json:"pod"`
	From string `json:"from"`
	To   string `json:"to"`
	// Signal is when the status was stored that tells of the failure; nil for a
	// drain, which has none.
	Signal *time.Time `json:"signal,omitempty"`
	// Asked is when a drain began; nil for a failover.
	Asked *time.Time `json:"asked,omitempty"`
	// Accepted is when the first eviction or deletion of the pod was.
	Accepted time.Time `json:"accepted"`
	// Attached is when the volume was attached elsewhere.
	Attached time.Time `json:"attached"`
}

func signalToAccepted(s Sample) time.Duration { return s.Accepted.Sub(*s.Signal) }

func beyondConfirmation(s Sample) time.Duration { return signalToAccepted(s) - confirmAfter }

func signalToAttached(s Sample) time.Duration { return s.Attached.Sub(*s.Signal) }

func askedToAccepted(s Sample) time.Duration { return s.Accepted.Sub(*s.Asked) }

func acceptedToAttached(s Sample) time.Duration { return s.Attached.Sub(s.Accepted) }

func pick(samples []Sample, what func(Sample) time.Duration) []time.Duration {
	picked := make([]time.Duration, 0, len(samples))
	for _, s := range samples {
		picked = append(picked, what(s))
	}
	return picked
}

// Stats are in seconds. Percentiles are by nearest rank: of fewer than a
// hundred samples the 99th is the largest.
type Stats struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func statsOf(durations []time.Duration) Stats {
	if len(durations) == 0 {
		return Stats{}
	}
	sorted := slices.Sorted(slices.Values(durations))
	rank := func(p float64) float64 {
		return sorted[int(math.Ceil(p*float64(len(sorted))))-1].Seconds()
	}
	return Stats{N: len(sorted), P50: rank(0.50), P99: rank(0.99), Max: sorted[len(sorted)-1].Seconds()}
}
