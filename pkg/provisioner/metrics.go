package provisioner

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics"
)

// controllerMetrics have the names of external-provisioner, but for the last
// three. The label class is spec.storageClassName, as there.
type controllerMetrics struct {
	provisionTotal, provisionFailedTotal *metrics.CounterVec
	provisionSeconds                     *metrics.HistogramVec
	deleteTotal, deleteFailedTotal       *metrics.CounterVec
	deleteSeconds                        *metrics.HistogramVec
	panics                               *metrics.Counter
}

func newMetrics() *controllerMetrics {
	const claims, volumes = "persistentvolumeclaim", "persistentvolume"
	counter := func(subsystem, name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "controller", Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	histogram := func(subsystem, name, help string, labels ...string) *metrics.HistogramVec {
		return metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: "controller", Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	return &controllerMetrics{
		provisionTotal:       counter(claims, "provision_total", "Volumes provisioned.", "class", "source"),
		provisionFailedTotal: counter(claims, "provision_failed_total", "Attempts to provision that failed.", "class", "source"),
		provisionSeconds:     histogram(claims, "provision_duration_seconds", "How long it took to provision a volume.", "class", "source"),
		deleteTotal:          counter(volumes, "delete_total", "Volumes deleted.", "class"),
		deleteFailedTotal:    counter(volumes, "delete_failed_total", "Attempts to delete a volume that failed.", "class"),
		deleteSeconds:        histogram(volumes, "delete_duration_seconds", "How long it took to delete a volume.", "class"),
		panics: metrics.NewCounter(&metrics.CounterOpts{
			Name: "ha_sidecar_provisioner_panics_total", StabilityLevel: metrics.ALPHA,
			Help: "Panics caught while working on an item.",
		}),
	}
}

func labels(claim *v1.PersistentVolumeClaim) (class, source string) {
	if claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	if claim.Spec.DataSource != nil {
		source = claim.Spec.DataSource.Kind
	}
	return class, source
}

func (m *controllerMetrics) provisioned(claim *v1.PersistentVolumeClaim, took time.Duration) {
	class, source := labels(claim)
	m.provisionTotal.WithLabelValues(class, source).Inc()
	m.provisionSeconds.WithLabelValues(class, source).Observe(took.Seconds())
}

func (m *controllerMetrics) provisionFailed(claim *v1.PersistentVolumeClaim) {
	class, source := labels(claim)
	m.provisionFailedTotal.WithLabelValues(class, source).Inc()
}

func (m *controllerMetrics) deleted(pv *v1.PersistentVolume, took time.Duration) {
	m.deleteTotal.WithLabelValues(pv.Spec.StorageClassName).Inc()
	m.deleteSeconds.WithLabelValues(pv.Spec.StorageClassName).Observe(took.Seconds())
}

func (m *controllerMetrics) deleteFailed(pv *v1.PersistentVolume) {
	m.deleteFailedTotal.WithLabelValues(pv.Spec.StorageClassName).Inc()
}

// register registers everything; a counter that is not registered counts nothing.
func (ctrl *ProvisionController) register(r metrics.KubeRegistry) error {
	if r == nil {
		return nil
	}
	m := ctrl.metrics
	for _, metric := range []metrics.Registerable{
		m.provisionTotal, m.provisionFailedTotal, m.provisionSeconds, m.deleteTotal, m.deleteFailedTotal, m.deleteSeconds, m.panics,
	} {
		if err := r.Register(metric); err != nil {
			return err
		}
	}
	return r.CustomRegister(newCollector(ctrl.ops))
}

// collector counts what is under way when it is scraped.
type collector struct {
	metrics.BaseStableCollector
	ops                 *operations
	background, unsaved *metrics.Desc
}

func newCollector(ops *operations) *collector {
	desc := func(name, help string) *metrics.Desc {
		return metrics.NewDesc(name, help, nil, nil, metrics.ALPHA, "")
	}
	return &collector{
		ops:        ops,
		background: desc("ha_sidecar_provisioner_background_volumes", "Volumes that may exist, and whose creation is tried until that is known."),
		unsaved:    desc("ha_sidecar_provisioner_unsaved_volumes", "Volumes that exist, and whose PersistentVolume could not be saved yet."),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- c.background
	ch <- c.unsaved
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(ch chan<- metrics.Metric) {
	background, unsaved := c.ops.background()
	ch <- metrics.NewLazyConstMetric(c.background, metrics.GaugeValue, float64(background))
	ch <- metrics.NewLazyConstMetric(c.unsaved, metrics.GaugeValue, float64(unsaved))
}
