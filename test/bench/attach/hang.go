package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/test/bench/report"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

const (
	// arrivals are attaches that are asked for one after the other while others
	// hang, and every is the time between two.
	arrivals = 200
	every    = 50 * time.Millisecond
	// hangBar is how long an attach may take then.
	hangBar = 2 * time.Second
	// hangBound is far above what the phase takes.
	hangBound = 5 * time.Minute
)

// Hang is how long attaches take while the driver answers no
// ControllerUnpublishVolume.
type Hang struct {
	// Hanging detaches are asked for, Attached is of the attaches meanwhile.
	Hanging  int             `json:"hanging"`
	Attached stats.Durations `json:"attachSeconds"`
	// Calls is how many of the detaches have reached the driver, and hung, by the
	// time that all is attached.
	Calls int `json:"hungCalls"`
	// Recovered is how long all detaches took once the driver answered again.
	Recovered float64 `json:"recoveredSeconds"`
}

// hanging measures attaches beside detaches that hang, with the defaults.
func hanging(n int, progress io.Writer) plan {
	p := plan{
		name:    "HANG",
		title:   fmt.Sprintf("%d detaches hang in the driver, %d attaches are asked for, one each %v; shipped defaults", n, arrivals, every),
		volumes: n + arrivals,
	}
	p.config.ClusterArgs = shipped.clusterArgs()
	p.measure = func(ctx context.Context, w *stage, phase *Phase) (err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, hangBound, fmt.Errorf("it took longer than %v", hangBound))
		defer cancel()
		program, err := w.start(ctx, ours, shipped.flags)
		if err != nil {
			return err
		}
		phase.Hang, err = w.hang(ctx, n)
		if err := errors.Join(err, program.Stop()); err != nil {
			return err
		}
		h := phase.Hang
		_, _ = fmt.Fprintf(progress, "  attached after: p50 %.3f s, p99 %.3f s, max %.3f s; %d calls hung; all %d detached %.1f s after the driver answered again\n",
			h.Attached.P50, h.Attached.P99, h.Attached.Max, h.Calls, n, h.Recovered)
		phase.Bars = append(phase.Bars, report.AtMost(fmt.Sprintf("HANG: p99 of an attach while %d detaches hang, in seconds", n), h.Attached.P99, hangBar.Seconds()))
		return nil
	}
	return p
}

func (w *stage) hang(ctx context.Context, n int) (*Hang, error) {
	t, err := trackAttachments(ctx, w.admin)
	if err != nil {
		return nil, err
	}
	defer t.Stop()
	stuck, err := w.newBatch(ctx, 0, n)
	if err != nil {
		return nil, err
	}
	if err := world.Each(n, func(i int) error { return stuck.attach(ctx, i) }); err != nil {
		return nil, err
	}
	if _, err := t.Await(ctx, stuck.names, attached); err != nil {
		return nil, err
	}
	fault, err := w.Driver.Inject(ctx, simctl.Fault{Method: "ControllerUnpublishVolume", Hang: true})
	if err != nil {
		return nil, err
	}
	if err := world.Each(n, func(i int) error { return stuck.detach(ctx, i) }); err != nil {
		return nil, err
	}
	if _, err := w.Driver.AwaitHits(ctx, fault, 1); err != nil {
		return nil, err
	}
	h := &Hang{Hanging: n}
	if h.Attached, err = w.arrive(ctx, t, n); err != nil {
		return nil, err
	}
	now, err := w.Driver.AwaitHits(ctx, fault, 1)
	if err != nil {
		return nil, err
	}
	h.Calls = now.Hits
	released := time.Now()
	if err := w.Driver.Clear(ctx, fault); err != nil {
		return nil, err
	}
	_, err = t.Await(ctx, stuck.names, track.Gone)
	h.Recovered = time.Since(released).Seconds()
	return h, err
}

// arrive asks for one attach after the other, in its time, however long those
// before it take.
func (w *stage) arrive(ctx context.Context, t *track.Tracker, first int) (stats.Durations, error) {
	b, err := w.newBatch(ctx, first, arrivals)
	if err != nil {
		return stats.Durations{}, err
	}
	asked := make([]time.Time, arrivals)
	errs := make(chan error, arrivals)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for i := range arrivals {
		asked[i] = time.Now()
		go func() { errs <- b.attach(ctx, i) }()
		<-ticker.C
	}
	for range arrivals {
		if err := <-errs; err != nil {
			return stats.Durations{}, err
		}
	}
	outcomes, err := t.Await(ctx, b.names, attached)
	if err != nil {
		return stats.Durations{}, err
	}
	latencies := make([]time.Duration, arrivals)
	for i, at := range outcomes {
		latencies[i] = at.Sub(asked[i])
	}
	return stats.Of(latencies), nil
}
