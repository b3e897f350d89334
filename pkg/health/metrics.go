package health

import (
	"fmt"

	"k8s.io/component-base/metrics"
)

// instruments are the metrics of a Monitor.
type instruments struct {
	sweeps        *metrics.CounterVec
	sweepDuration *metrics.Histogram
	lastComplete  *metrics.Gauge
	skipped       *metrics.Counter
	volumes       *metrics.GaugeVec
	waiting       *metrics.GaugeVec
	checks        *metrics.CounterVec
	claimWrites   *metrics.CounterVec
	panics        *metrics.Counter
}

func newInstruments(registry metrics.KubeRegistry) (*instruments, error) {
	m := &instruments{
		sweeps: metrics.NewCounterVec(&metrics.CounterOpts{
			Name:           "ha_sidecar_health_sweeps_total",
			Help:           "Passes over the driver's volumes, by result: complete, partial or failed.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"result"}),
		sweepDuration: metrics.NewHistogram(&metrics.HistogramOpts{
			Name:           "ha_sidecar_health_sweep_duration_seconds",
			Help:           "How long a pass over the driver's volumes took.",
			Buckets:        metrics.ExponentialBuckets(0.005, 2.5, 12),
			StabilityLevel: metrics.ALPHA,
		}),
		lastComplete: metrics.NewGauge(&metrics.GaugeOpts{
			Name:           "ha_sidecar_health_last_complete_sweep_timestamp_seconds",
			Help:           "When the last complete pass over the driver's volumes ended, in seconds since the epoch; 0 for never.",
			StabilityLevel: metrics.ALPHA,
		}),
		skipped: metrics.NewCounter(&metrics.CounterOpts{
			Name:           "ha_sidecar_health_sweep_entries_skipped_total",
			Help:           "Entries of the driver's answers that could not be used.",
			StabilityLevel: metrics.ALPHA,
		}),
		volumes: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name:           "ha_sidecar_volumes",
			Help:           "Bound volumes of the driver, by the worst state that any source reports.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"state"}),
		waiting: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name:           "ha_sidecar_health_unconfirmed",
			Help:           "Statuses old enough to be confirmed that are not, by what they wait for: lease or live-read.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"waiting_for"}),
		checks: metrics.NewCounterVec(&metrics.CounterOpts{
			Name:           "ha_sidecar_health_checks_total",
			Help:           "Checks of stored statuses before they are confirmed, by result: read, failed or lease-stale.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"result"}),
		claimWrites: metrics.NewCounterVec(&metrics.CounterOpts{
			Name:           "ha_sidecar_health_claim_status_writes_total",
			Help:           "Writes of PersistentVolumeClaim.status.healthStatus, by result: written, unsupported, forbidden or failed.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"result"}),
		panics: metrics.NewCounter(&metrics.CounterOpts{
			Name:           "ha_sidecar_health_panics_total",
			Help:           "Panics caught while working on an object, an answer or a sweep.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range []metrics.Registerable{m.sweeps, m.sweepDuration, m.lastComplete, m.skipped, m.volumes, m.waiting, m.checks, m.claimWrites, m.panics} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("registering metric %s: %w", c.FQName(), err)
		}
	}
	return m, nil
}
