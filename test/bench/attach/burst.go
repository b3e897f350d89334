package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

// Burst is many attaches, or many detaches, that are asked for at once.
type Burst struct {
	// Begun is before the first request, Ended when a watch told of the last
	// outcome, Settled when nothing more has happened for a while.
	Begun   time.Time `json:"begun"`
	Ended   time.Time `json:"ended"`
	Settled time.Time `json:"settled"`
	// PerSecond is their number by the time from Begun to Ended.
	PerSecond float64 `json:"perSecond"`
	// Latency is from before the request for one to its outcome.
	Latency stats.Durations `json:"latencySeconds"`
	// Calls of the driver for them.
	Calls int `json:"driverCalls"`
	// CPU is what was used from Begun to Ended, in seconds, by program.
	CPU usage.CPU `json:"cpuSeconds"`
	// Requests of the side to the API server from Begun to Settled.
	Requests audit.Requests `json:"requests"`
}

// Run is one run of one side.
type Run struct {
	Side    string `json:"side"`
	Volumes int    `json:"volumes"`
	Attach  Burst  `json:"attach"`
	Detach  Burst  `json:"detach"`
	// ResidentMiB is the larger of the resident memory after each burst.
	ResidentMiB float64 `json:"residentMiB"`

	side side
}

// runBound is far above what any run takes.
const runBound = 10 * time.Minute

// run starts a side, lets it attach and detach volumes that are new to it, and
// stops it.
func (w *stage) run(ctx context.Context, s side, set setting, volumes int) (_ *Run, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runBound, fmt.Errorf("a run of %s took longer than %v", s.title, runBound))
	defer cancel()
	prepare := w.newBatch
	switch {
	case set.pods:
		prepare = w.newManaged
	case set.backlog:
		prepare = w.usedBatch
	}
	b, err := prepare(ctx, 0, volumes)
	if err != nil {
		return nil, err
	}
	p, err := w.start(ctx, s, set.flags)
	if err != nil {
		return nil, err
	}
	result := &Run{Side: s.title, Volumes: volumes, side: s}
	for _, err := range []error{
		result.measure(ctx, w, b, p, set.backlog),
		p.Stop(),
		b.remove(ctx),
	} {
		if err != nil {
			return nil, err
		}
	}
	return result, nil
}

func (r *Run) measure(ctx context.Context, w *stage, b *batch, p *program, backlog bool) (err error) {
	t, err := trackAttachments(ctx, w.admin)
	if err != nil {
		return err
	}
	defer t.Stop()
	if r.Attach, err = burst(ctx, t, p, b.names, publish, backlog, attached, func(i int) error { return b.ask(ctx, i) }); err != nil {
		return fmt.Errorf("attaching with %s: %w", r.Side, err)
	}
	before, err := usage.ReadMemory(p.Pid())
	if err != nil {
		return err
	}
	if r.Detach, err = burst(ctx, t, p, b.names, unpublish, backlog, track.Gone, func(i int) error { return b.leave(ctx, i) }); err != nil {
		return fmt.Errorf("detaching with %s: %w", r.Side, err)
	}
	after, err := usage.ReadMemory(p.Pid())
	r.ResidentMiB = max(before.Resident, after.Resident)
	return err
}

// burst asks for all at once and waits until all is done. A backlog is all asked
// for before the program goes on.
func burst(ctx context.Context, t *track.Tracker, p *program, names []string, method string, backlog bool,
	what string, ask func(i int) error) (b Burst, err error) {
	before, err := p.calls(method)
	if err != nil {
		return b, err
	}
	if backlog {
		if err := errors.Join(p.Pause(), world.Each(len(names), ask), p.Continue()); err != nil {
			return b, err
		}
		ask = func(int) error { return nil }
	}
	asked, used := make([]time.Time, len(names)), usage.ReadCPU()
	failed := make(chan error, 1)
	b.Begun = time.Now()
	go func() {
		failed <- world.Each(len(names), func(i int) error {
			asked[i] = time.Now()
			return ask(i)
		})
	}()
	outcomes, err := t.Await(ctx, names, what)
	b.CPU = usage.ReadCPU().Since(used)
	if err := errors.Join(err, <-failed); err != nil {
		return b, err
	}
	latencies := make([]time.Duration, len(names))
	for i, at := range outcomes {
		latencies[i] = at.Sub(asked[i])
		if at.After(b.Ended) {
			b.Ended = at
		}
	}
	b.Latency = stats.Of(latencies)
	b.PerSecond = float64(len(names)) / b.Ended.Sub(b.Begun).Seconds()
	after, err := p.settle(ctx, method)
	b.Calls, b.Settled = after-before, time.Now()
	return b, err
}
