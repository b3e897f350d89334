package capacity

import (
	"k8s.io/component-base/metrics"
)

// controllerMetrics are the counters; what can be counted at scrape time is in
// collector.
type controllerMetrics struct {
	lookups *metrics.CounterVec
	writes  *metrics.CounterVec
	panics  *metrics.Counter
}

func newMetrics() *controllerMetrics {
	return &controllerMetrics{
		lookups: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "ha_sidecar_capacity_lookups_total", StabilityLevel: metrics.ALPHA,
			Help: "Times the driver was asked for its capacity, by result.",
		}, []string{"result"}),
		writes: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "ha_sidecar_capacity_writes_total", StabilityLevel: metrics.ALPHA,
			Help: "Requests to write CSIStorageCapacity objects, by verb and result.",
		}, []string{"verb", "result"}),
		panics: metrics.NewCounter(&metrics.CounterOpts{
			Name: "ha_sidecar_capacity_panics_total", StabilityLevel: metrics.ALPHA,
			Help: "Panics caught while working on an item.",
		}),
	}
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

func (m *controllerMetrics) asked(err error) { m.lookups.WithLabelValues(result(err)).Inc() }
func (m *controllerMetrics) wrote(verb string, err error) {
	m.writes.WithLabelValues(verb, result(err)).Inc()
}

// register registers everything; a counter that is not registered counts nothing.
func (c *Controller) register(r metrics.KubeRegistry) error {
	if r == nil {
		return nil
	}
	for _, metric := range []metrics.Registerable{c.metrics.lookups, c.metrics.writes, c.metrics.panics} {
		if err := r.Register(metric); err != nil {
			return err
		}
	}
	return r.CustomRegister(newCollector(c))
}

// collector reads plan and table when it is scraped. The names of the first three
// are external-provisioner's.
type collector struct {
	metrics.BaseStableCollector
	c                                         *Controller
	goal, current, obsolete, failing, refused *metrics.Desc
}

func newCollector(c *Controller) *collector {
	desc := func(name, help string, labels ...string) *metrics.Desc {
		return metrics.NewDesc(name, help, labels, nil, metrics.ALPHA, "")
	}
	return &collector{
		c:        c,
		goal:     desc("csistoragecapacities_desired_goal", "CSIStorageCapacity objects that there should be."),
		current:  desc("csistoragecapacities_desired_current", "Those of them that there are."),
		obsolete: desc("csistoragecapacities_obsolete", "CSIStorageCapacity objects of ours that there should not be and that are being deleted."),
		failing:  desc("ha_sidecar_capacity_failing", "Objects whose capacity could not be found out or written at the last try."),
		refused:  desc("ha_sidecar_capacity_refused", "1 for each verb that the API server refuses us on CSIStorageCapacity objects.", "verb"),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (k *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{k.goal, k.current, k.obsolete, k.failing, k.refused} {
		ch <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (k *collector) CollectWithStability(ch chan<- metrics.Metric) {
	goal, current, obsolete := k.c.counts()
	for d, n := range map[*metrics.Desc]int{k.goal: goal, k.current: current, k.obsolete: obsolete, k.failing: k.c.backlog.failing()} {
		ch <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, float64(n))
	}
	for _, verb := range k.c.access.verbs() {
		ch <- metrics.NewLazyConstMetric(k.refused, metrics.GaugeValue, 1, verb)
	}
}

// counts is how many objects there should be, how many of these there are, and how
// many there are that should not be; none of the last before the first plan.
func (c *Controller) counts() (goal, current, obsolete int) {
	items := c.goals.all()
	for it, count := range c.table.items() {
		if _, wanted := items[it]; wanted {
			current++
			obsolete += count - 1
		} else if items != nil {
			obsolete += count
		}
	}
	return len(items), current, obsolete
}
