package health

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// jitter is the part of the interval that is added at random, so that many
// drivers' sidecars do not ask one array at the same moment.
const jitter = 0.1

// sweepResult is a sweep on its way to the event loop.
type sweepResult struct {
	sweep volume.Sweep
	asked map[volume.Handle]struct{}
}

// sweepLoop asks the driver at once and then at intervals; one sweep ends before
// the next begins. A failed one changes nothing.
func (m *Monitor) sweepLoop(ctx context.Context) {
	logger := klog.FromContext(ctx)
	var failing string
	timer := m.cfg.Clock.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		next := m.cfg.Clock.Now().Add(wait.Jitter(m.cfg.Interval, jitter))
		err := m.metrics.caught(logger, func() error { return m.sweep(ctx) })
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && failing != "":
			logger.Info("Asking the driver for the health of its volumes works again")
			failing = ""
		case err != nil && failing != err.Error():
			logger.Error(err, "Asking the driver for the health of its volumes failed; what is believed stays")
			failing = err.Error()
		}
		timer.Reset(max(0, next.Sub(m.cfg.Clock.Now())))
	}
}

// sweep makes one pass over the driver's bound volumes.
func (m *Monitor) sweep(ctx context.Context) error {
	pvs, err := m.look.pvs.List(labels.Everything())
	if err != nil {
		return err
	}
	asked := map[volume.Handle]struct{}{}
	var handles []volume.Handle
	for _, pv := range pvs {
		handle := boundHandle(m.cfg.DriverName, pv)
		if _, twice := asked[handle]; handle == "" || twice {
			continue
		}
		asked[handle] = struct{}{}
		handles = append(handles, handle)
	}
	slices.Sort(handles)
	start := m.cfg.Clock.Now()
	sweep, err := m.cfg.Sweeper.Sweep(ctx, handles)
	m.measureSweep(sweep, err, start)
	if err != nil {
		return err
	}
	select {
	case m.swept <- sweepResult{sweep: sweep, asked: asked}:
	case <-ctx.Done():
	}
	return nil
}

func (m *Monitor) measureSweep(sweep volume.Sweep, err error, start time.Time) {
	now := m.cfg.Clock.Now()
	m.metrics.sweepDuration.Observe(now.Sub(start).Seconds())
	m.metrics.skipped.Add(float64(sweep.Skipped))
	switch {
	case err != nil:
		m.metrics.sweeps.WithLabelValues("failed").Inc()
	case sweep.Complete:
		m.metrics.sweeps.WithLabelValues("complete").Inc()
		m.metrics.lastComplete.Set(float64(now.Unix()))
	default:
		m.metrics.sweeps.WithLabelValues("partial").Inc()
	}
}

// takeSweep hands a sweep to the tracker, in the event loop.
func (m *Monitor) takeSweep(result sweepResult) {
	m.retryPanicked()
	sweep := result.sweep
	if m.cfg.LegacyAbnormal == LegacyFailover {
		sweep.Readings = expandLegacy(mergeReadings(sweep.Readings), m.attachments.nodesOf)
	}
	m.tracker.observeSweep(sweep, result.asked, m.cfg.Clock.Now())

	m.heard, m.unheard = true, 0
	if !sweep.Complete || !sweep.AbnormalOnly {
		answered := map[volume.Handle]struct{}{}
		for _, r := range sweep.Readings {
			if _, ok := result.asked[r.Key.Handle]; ok {
				answered[r.Key.Handle] = struct{}{}
			}
		}
		m.unheard = len(result.asked) - len(answered)
	}
	if s := m.current.Load(); s != nil {
		m.measure(s)
	}
}
