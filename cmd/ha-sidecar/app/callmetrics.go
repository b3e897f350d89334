package app

import (
	"sync/atomic"
	"time"

	csimetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	"k8s.io/component-base/metrics"
	csitrans "k8s.io/csi-translation-lib"
)

// callMetrics is csi_sidecar_operations_seconds. For a driver that took an in-tree
// plugin's place it has one label more, as with external-provisioner and
// external-attacher: migrated. Which labels there are is settled when a metric is
// made, and whether it is such a driver is known only when it has told its name:
// it is made anew then. What was recorded before, of asking for the name, is lost.
type callMetrics struct{ current atomic.Pointer[manager] }

// manager is a CSIMetricsManager, since an interface is none for an atomic.Pointer.
type manager struct{ csimetrics.CSIMetricsManager }

func newCallMetrics() *callMetrics {
	m := &callMetrics{}
	m.current.Store(newManager(""))
	return m
}

func newManager(driver string, more ...csimetrics.MetricsManagerOption) *manager {
	options := append([]csimetrics.MetricsManagerOption{
		csimetrics.WithSubsystem(csimetrics.SubsystemSidecar), csimetrics.WithProcessStartTime(false),
		csimetrics.WithCustomRegistry(metrics.NewKubeRegistry()),
	}, more...)
	return &manager{csimetrics.NewCSIMetricsManagerWithOptions(driver, options...)}
}

// SetDriverName implements csiclient.Metrics. The driver keeps its name.
func (m *callMetrics) SetDriverName(name string) {
	current := m.current.Load()
	if !current.HaveAdditionalLabel(csimetrics.LabelMigrated) && csitrans.New().IsMigratedCSIDriverByName(name) {
		m.current.Store(newManager(name, csimetrics.WithMigration()))
		return
	}
	current.SetDriverName(name)
}

// RecordMetrics implements csiclient.Metrics.
func (m *callMetrics) RecordMetrics(method string, err error, took time.Duration) {
	m.current.Load().RecordMetrics(method, err, took)
}

// HaveAdditionalLabel implements csiclient.Metrics.
func (m *callMetrics) HaveAdditionalLabel(name string) bool {
	return m.current.Load().HaveAdditionalLabel(name)
}

// WithLabelValues implements csiclient.Metrics.
func (m *callMetrics) WithLabelValues(labels map[string]string) (csimetrics.CSIMetricsManager, error) {
	return m.current.Load().WithLabelValues(labels)
}

// registry has the metric as it is now.
func (m *callMetrics) registry() metrics.KubeRegistry { return m.current.Load().GetRegistry() }
