package csiclient

import (
	"fmt"

	"k8s.io/component-base/metrics"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Kinds of malformed replies.
const (
	malformedOversize  = "oversize"
	malformedUTF8      = "invalid_utf8"
	malformedToken     = "repeated_token"
	malformedEndless   = "endless_list"
	malformedCondition = "undecodable_condition"
)

type instruments struct {
	connected  *metrics.Gauge
	reconnects *metrics.Counter
	outcomes   *metrics.CounterVec
	skipped    *metrics.CounterVec
	malformed  *metrics.CounterVec
}

func newInstruments(registry metrics.KubeRegistry) (*instruments, error) {
	i := &instruments{
		connected: metrics.NewGauge(&metrics.GaugeOpts{
			Name:           "ha_sidecar_csi_connected",
			Help:           "1 while the driver is connected and answered who it is, else 0.",
			StabilityLevel: metrics.ALPHA,
		}),
		reconnects: metrics.NewCounter(&metrics.CounterOpts{
			Name:           "ha_sidecar_csi_reconnects_total",
			Help:           "Times that the driver was connected again after its connection was lost.",
			StabilityLevel: metrics.ALPHA,
		}),
		outcomes: metrics.NewCounterVec(&metrics.CounterOpts{
			Name:           "ha_sidecar_csi_call_outcomes_total",
			Help:           "CSI calls by method and outcome: ok, final, uncertain, retry. Calls refused for want of a connection are retry.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"method", "outcome"}),
		skipped: metrics.NewCounterVec(&metrics.CounterOpts{
			Name:           "ha_sidecar_csi_skipped_entries_total",
			Help:           "Entries of the driver's health replies that could not be used, by reason.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"reason"}),
		malformed: metrics.NewCounterVec(&metrics.CounterOpts{
			Name:           "ha_sidecar_csi_malformed_replies_total",
			Help:           "Replies of the driver that break the CSI spec or a limit, by kind.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"kind"}),
	}
	if registry == nil {
		return i, nil
	}
	for _, m := range []metrics.Registerable{i.connected, i.reconnects, i.outcomes, i.skipped, i.malformed} {
		if err := registry.Register(m); err != nil {
			return nil, fmt.Errorf("registering metric %s: %w", m.FQName(), err)
		}
	}
	return i, nil
}

func (i *instruments) outcome(method string, outcome volume.Outcome) {
	i.outcomes.WithLabelValues(method, string(outcome)).Inc()
}
