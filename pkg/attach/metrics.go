package attach

import (
	"k8s.io/component-base/metrics"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	namespace = "ha_sidecar"
	subsystem = "attach"
)

// controllerMetrics are the counters; what can be counted at scrape time is in
// collector.
type controllerMetrics struct {
	operations *metrics.CounterVec
	fences     *metrics.CounterVec
	held       *metrics.CounterVec
	panics     *metrics.Counter
	lists      *metrics.CounterVec
	repaired   *metrics.Counter
}

func newMetrics() *controllerMetrics {
	vec := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	return &controllerMetrics{
		operations: vec("operations_total", "Calls to the driver to publish or unpublish a volume, by what they left behind.", "operation", "outcome"),
		fences:     vec("fences_total", "Fences of a VolumeAttachment asked for, by result.", "result"),
		held:       vec("held_back_total", "VolumeAttachments that were kept waiting, by what for: the detach from another node, the hold of a node, a fence record, or use by a node that works.", "cause"),
		lists:      vec("published_lists_total", "Times the driver was asked where its volumes are published, by result.", "result"),
		repaired: metrics.NewCounter(&metrics.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "repairs_total", StabilityLevel: metrics.ALPHA,
			Help: "Attachments that the driver listed as gone, twice in a row, and that were published again or released.",
		}),
		panics: metrics.NewCounter(&metrics.CounterOpts{
			Namespace: namespace, Subsystem: subsystem, Name: "panics_total", StabilityLevel: metrics.ALPHA,
			Help: "Panics caught while working on an item.",
		}),
	}
}

func (m *controllerMetrics) operation(name string, o volume.Outcome) {
	m.operations.WithLabelValues(name, string(o)).Inc()
}
func (m *controllerMetrics) fence(result string)   { m.fences.WithLabelValues(result).Inc() }
func (m *controllerMetrics) heldBack(cause string) { m.held.WithLabelValues(cause).Inc() }
func (m *controllerMetrics) compared(err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.lists.WithLabelValues(result).Inc()
}
func (m *controllerMetrics) panicked() { m.panics.Inc() }

// register registers everything; a counter that is not registered counts nothing.
func (c *Controller) register(r metrics.KubeRegistry) error {
	if r == nil {
		return nil
	}
	m := c.metrics
	for _, metric := range []metrics.Registerable{m.operations, m.fences, m.held, m.panics, m.lists, m.repaired} {
		if err := r.Register(metric); err != nil {
			return err
		}
	}
	return r.CustomRegister(newCollector(c))
}

// collector reads lanes and ledger when it is scraped.
type collector struct {
	metrics.BaseStableCollector
	c                                       *Controller
	depth, oldest, keys, uncertain, orphans *metrics.Desc
}

func newCollector(c *Controller) *collector {
	desc := func(name, help string, labels ...string) *metrics.Desc {
		return metrics.NewDesc(namespace+"_"+subsystem+"_"+name, help, labels, nil, metrics.ALPHA, "")
	}
	return &collector{
		c:      c,
		depth:  desc("lane_depth", "Items that wait for a worker of the lane.", "lane"),
		oldest: desc("lane_oldest_seconds", "How long the first of them has waited.", "lane"),
		keys:   desc("keys", "Volumes on nodes, by state.", "state"),

		uncertain: desc("uncertain_oldest_seconds", "How long the first of the volumes on nodes whose last call did not tell what it did has been so."),
		orphans:   desc("orphans", "Volumes published to a node of the cluster for no VolumeAttachment, seen twice in a row."),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (k *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- k.depth
	ch <- k.oldest
	ch <- k.keys
	ch <- k.uncertain
	ch <- k.orphans
}

// CollectWithStability implements metrics.StableCollector.
func (k *collector) CollectWithStability(ch chan<- metrics.Metric) {
	for _, l := range k.c.lanes.all() {
		n, oldest := l.depth()
		ch <- metrics.NewLazyConstMetric(k.depth, metrics.GaugeValue, float64(n), l.name)
		ch <- metrics.NewLazyConstMetric(k.oldest, metrics.GaugeValue, oldest.Seconds(), l.name)
	}
	counts := map[State]int{}
	k.c.ledger.keysWhere(func(_ volume.Key, s State) bool {
		counts[s]++
		return false
	})
	for _, s := range states {
		ch <- metrics.NewLazyConstMetric(k.keys, metrics.GaugeValue, float64(counts[s]), string(s))
	}
	ch <- metrics.NewLazyConstMetric(k.uncertain, metrics.GaugeValue, k.c.ledger.oldestUncertain().Seconds())
	ch <- metrics.NewLazyConstMetric(k.orphans, metrics.GaugeValue, float64(k.c.orphans.count()))
}
