package csiclient

import (
	"errors"
	"fmt"
	"time"

	csimetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"
)

// Defaults of Config.
const (
	DefaultTimeout           = 15 * time.Second
	DefaultConnectTimeout    = 10 * time.Second
	DefaultProbeInterval     = 30 * time.Second
	DefaultMaxReceiveBytes   = 16 << 20
	DefaultHealthParallelism = 4
	DefaultListEntries       = 500
)

// Metrics records calls. A CSIMetricsManager of csi-lib-utils does; one with the
// label migrated gets its value by volume.Migrated.
type Metrics interface {
	SetDriverName(driverName string)
	RecordMetrics(operationName string, operationErr error, operationDuration time.Duration)
	HaveAdditionalLabel(name string) bool
	WithLabelValues(labels map[string]string) (csimetrics.CSIMetricsManager, error)
}

// Config is what New needs to know. Zero values take the defaults above.
type Config struct {
	// Address is the driver's socket: an absolute path, or a URL unix:///path.
	Address string
	// Timeout bounds each call that works on volumes. A shorter deadline of the
	// caller wins.
	Timeout time.Duration
	// ConnectTimeout bounds each call that asks who the driver is: opening the
	// connection, Probe, name, capabilities. How often these are tried again is
	// up to the context of Connect and Run.
	ConnectTimeout time.Duration
	// ProbeInterval is how often Run probes a driver that is connected.
	ProbeInterval time.Duration
	// MaxReceiveBytes is the largest reply accepted.
	MaxReceiveBytes int
	// HealthParallelism bounds the health calls in flight where the driver has
	// to be asked volume by volume.
	HealthParallelism int
	// ListEntries is max_entries of list calls; it is halved within a sweep
	// when a reply is over MaxReceiveBytes.
	ListEntries int
	// Metrics records csi_sidecar_operations_seconds; nil records nothing.
	Metrics Metrics
	// Registry takes the metrics ha_sidecar_csi_*; nil leaves them unregistered.
	Registry metrics.KubeRegistry
	// Clock is the real one if nil. Deadlines of calls are always real time.
	Clock clock.WithTicker
}

// withDefaults fills what was left out.
func (c Config) withDefaults() Config {
	setDefault(&c.Timeout, DefaultTimeout)
	setDefault(&c.ConnectTimeout, DefaultConnectTimeout)
	setDefault(&c.ProbeInterval, DefaultProbeInterval)
	setDefault(&c.MaxReceiveBytes, DefaultMaxReceiveBytes)
	setDefault(&c.HealthParallelism, DefaultHealthParallelism)
	setDefault(&c.ListEntries, DefaultListEntries)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return c
}

func setDefault[T int | time.Duration](value *T, def T) {
	if *value == 0 {
		*value = def
	}
}

// validate reports every wrong field at once.
func (c Config) validate() error {
	var errs []error
	positive := func(name string, ok bool, value any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s must be positive, not %v", name, value))
		}
	}
	positive("Timeout", c.Timeout > 0, c.Timeout)
	positive("ConnectTimeout", c.ConnectTimeout > 0, c.ConnectTimeout)
	positive("ProbeInterval", c.ProbeInterval > 0, c.ProbeInterval)
	positive("MaxReceiveBytes", c.MaxReceiveBytes > 0, c.MaxReceiveBytes)
	positive("HealthParallelism", c.HealthParallelism > 0, c.HealthParallelism)
	positive("ListEntries", c.ListEntries > 0, c.ListEntries)
	return errors.Join(errs...)
}
