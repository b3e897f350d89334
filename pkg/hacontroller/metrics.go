package hacontroller

import (
	"fmt"

	"k8s.io/component-base/metrics"
)

// stepMetrics are the controller's metrics. They name no pod, node or volume.
type stepMetrics struct {
	steps    *metrics.HistogramVec
	refusals *metrics.CounterVec
	failures *metrics.Counter
	panics   *metrics.Counter
}

func newStepMetrics() *stepMetrics {
	return &stepMetrics{
		steps: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Name:           "ha_sidecar_failover_step_seconds",
			Help:           "Seconds from the signal, or from the discovery of a record, until a step of a failover was acknowledged.",
			Buckets:        []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600},
			StabilityLevel: metrics.ALPHA,
		}, []string{"step"}),
		refusals: metrics.NewCounterVec(&metrics.CounterOpts{
			Name:           "ha_sidecar_failover_refusals_total",
			Help:           "Pods, attachments and nodes that a failover did not touch or that hold it up, by reason.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"reason"}),
		failures: metrics.NewCounter(&metrics.CounterOpts{
			Name:           "ha_sidecar_failover_step_failures_total",
			Help:           "Steps of failovers that failed as often as to be told of.",
			StabilityLevel: metrics.ALPHA,
		}),
		panics: metrics.NewCounter(&metrics.CounterOpts{
			Name:           "ha_sidecar_failover_panics_total",
			Help:           "Panics caught while working on a node.",
			StabilityLevel: metrics.ALPHA,
		}),
	}
}

func (m *stepMetrics) register(r metrics.KubeRegistry) error {
	if r == nil {
		return nil
	}
	for _, c := range []metrics.Registerable{m.steps, m.refusals, m.failures, m.panics} {
		if err := r.Register(c); err != nil {
			return fmt.Errorf("hacontroller: registering metric %s: %w", c.FQName(), err)
		}
	}
	return nil
}
