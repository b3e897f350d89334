package failover

import (
	"fmt"
	"time"

	"k8s.io/component-base/metrics"
)

// failoverMetrics are the numbers of this package. Their labels are actions and
// codes only.
type failoverMetrics struct {
	decisions    *metrics.CounterVec
	answers      *metrics.GaugeVec
	breakerOpen  *metrics.Gauge
	failingNodes *metrics.Gauge
	nodeLimit    *metrics.Gauge
	duration     *metrics.Histogram
	panics       *metrics.Counter
}

// newMetrics makes the metrics and registers them; a nil registry leaves them
// without effect.
func newMetrics(registry metrics.KubeRegistry) (*failoverMetrics, error) {
	m := &failoverMetrics{
		decisions: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "ha_sidecar_failover_decisions_total", StabilityLevel: metrics.ALPHA,
			Help: "Decisions on a volume of a node, counted when the action or its first reason changes.",
		}, []string{"action", "reason"}),
		answers: metrics.NewGaugeVec(&metrics.GaugeOpts{
			Name: "ha_sidecar_failover_answers", StabilityLevel: metrics.ALPHA,
			Help: "Unwell volumes by what is decided about them now.",
		}, []string{"action", "reason"}),
		breakerOpen: metrics.NewGauge(&metrics.GaugeOpts{
			Name: "ha_sidecar_failover_breaker_open", StabilityLevel: metrics.ALPHA,
			Help: "1 while too many nodes fail and nothing is moved.",
		}),
		failingNodes: metrics.NewGauge(&metrics.GaugeOpts{
			Name: "ha_sidecar_failover_failing_nodes", StabilityLevel: metrics.ALPHA,
			Help: "Nodes that count for the breaker: not Ready, held, or with a volume confirmed inaccessible.",
		}),
		nodeLimit: metrics.NewGauge(&metrics.GaugeOpts{
			Name: "ha_sidecar_failover_failing_nodes_limit", StabilityLevel: metrics.ALPHA,
			Help: "How many nodes may fail before the breaker opens; -1 for any number.",
		}),
		duration: metrics.NewHistogram(&metrics.HistogramOpts{
			Name: "ha_sidecar_failover_decide_duration_seconds", StabilityLevel: metrics.ALPHA,
			Help:    "Time to gather a snapshot and decide.",
			Buckets: metrics.ExponentialBuckets(0.0001, 4, 8),
		}),
		panics: metrics.NewCounter(&metrics.CounterOpts{
			Name: "ha_sidecar_failover_decide_panics_total", StabilityLevel: metrics.ALPHA,
			Help: "Panics caught while deciding; nothing is decided then.",
		}),
	}
	if registry == nil {
		return m, nil
	}
	for _, metric := range []metrics.Registerable{m.decisions, m.answers, m.breakerOpen, m.failingNodes, m.nodeLimit, m.duration, m.panics} {
		if err := registry.Register(metric); err != nil {
			return nil, fmt.Errorf("registering metric %s: %w", metric.FQName(), err)
		}
	}
	return m, nil
}

// seen records one look.
func (m *failoverMetrics) seen(d Decision, took time.Duration) {
	m.duration.Observe(took.Seconds())
	m.failingNodes.Set(float64(len(d.Brake.Failing)))
	m.nodeLimit.Set(float64(d.Brake.Limit))
	open := 0.0
	if d.Brake.Open {
		open = 1
	}
	m.breakerOpen.Set(open)
	m.answers.Reset()
	for _, a := range d.Answers {
		m.answers.WithLabelValues(string(a.Action), string(a.Primary().Code)).Inc()
	}
}

// decided counts one change of an answer.
func (m *failoverMetrics) decided(a Answer) {
	m.decisions.WithLabelValues(string(a.Action), string(a.Primary().Code)).Inc()
}
