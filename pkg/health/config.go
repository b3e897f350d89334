package health

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Sweeper asks the driver about its volumes. An error means that nothing usable
// was heard; a sweep that was cut short is not Complete.
type Sweeper interface {
	Sweep(ctx context.Context, handles []volume.Handle) (volume.Sweep, error)
}

// LegacyAbnormal says what VolumeCondition.abnormal of CSI 1.3 to 1.12 counts
// for. It tells neither what is wrong nor from where.
type LegacyAbnormal string

const (
	// LegacyReport: abnormal is reported as Degraded and never acted on.
	LegacyReport LegacyAbnormal = "report"
	// LegacyFailover: abnormal counts as inaccessible from each node where the
	// volume is attached.
	LegacyFailover LegacyAbnormal = "failover"
)

// Defaults of Config.
const (
	DefaultInterval      = 30 * time.Second
	DefaultConfirmations = 3
	DefaultConfirmAfter  = 10 * time.Second
	DefaultSuspectFor    = 10 * time.Minute
	DefaultSuspectMax    = time.Hour
	DefaultLeaseGrace    = 20 * time.Second
)

// Config is what a Monitor needs. A zero duration, count or LegacyAbnormal means
// its default.
type Config struct {
	// DriverName is the CSI driver whose volumes are watched.
	DriverName string
	Sweeper    Sweeper
	Client     kubernetes.Interface
	// Informers gives PersistentVolumes, PersistentVolumeClaims, Pods,
	// VolumeAttachments, CSINodes and Nodes of all namespaces.
	Informers informers.SharedInformerFactory
	// LeaseInformer is of coordination/v1 Leases of namespace kube-node-lease.
	LeaseInformer cache.SharedIndexInformer
	// Recorder takes the events; nil for none.
	Recorder record.EventRecorder
	// Registry takes the metrics; nil for none.
	Registry metrics.KubeRegistry
	// Clock is the wall clock unless given.
	Clock clock.WithTicker

	// Interval is the time between the starts of two sweeps; up to a tenth is
	// added at random.
	Interval time.Duration
	// Confirmations is how many consecutive answers of a polled source confirm
	// a verdict.
	Confirmations int
	// ConfirmAfter is how old a stored status must be by our clock before it is
	// checked and confirmed.
	ConfirmAfter time.Duration
	// SuspectFor is how long a failing verdict outlives the VolumeAttachment;
	// it doubles with each repetition up to SuspectMax.
	SuspectFor time.Duration
	SuspectMax time.Duration
	// LegacyAbnormal is LegacyReport unless given.
	LegacyAbnormal LegacyAbnormal
	// LeaseGrace is how long after a renewal was observed a node's Lease counts
	// as fresh.
	LeaseGrace time.Duration
	// DisableClaimStatus keeps PersistentVolumeClaim.status.healthStatus
	// unwritten. Otherwise it is written where the server has the field, which
	// is found out by trying.
	DisableClaimStatus bool
}

// complete fills in the defaults and says what is wrong with the rest.
func (c *Config) complete() error {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	orDefault(&c.Interval, DefaultInterval)
	orDefault(&c.ConfirmAfter, DefaultConfirmAfter)
	orDefault(&c.SuspectFor, DefaultSuspectFor)
	if c.SuspectMax == 0 {
		c.SuspectMax = max(DefaultSuspectMax, c.SuspectFor)
	}
	orDefault(&c.LeaseGrace, DefaultLeaseGrace)
	if c.Confirmations == 0 {
		c.Confirmations = DefaultConfirmations
	}
	if c.LegacyAbnormal == "" {
		c.LegacyAbnormal = LegacyReport
	}
	return errors.Join(c.missing(), c.outOfRange())
}

func orDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

func (c *Config) missing() error {
	var errs []error
	for _, f := range []struct {
		name   string
		absent bool
	}{
		{"DriverName", c.DriverName == ""},
		{"Sweeper", c.Sweeper == nil},
		{"Client", c.Client == nil},
		{"Informers", c.Informers == nil},
		{"LeaseInformer", c.LeaseInformer == nil},
	} {
		if f.absent {
			errs = append(errs, fmt.Errorf("health: %s is missing", f.name))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) outOfRange() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"Interval", c.Interval},
		{"ConfirmAfter", c.ConfirmAfter},
		{"SuspectFor", c.SuspectFor},
		{"LeaseGrace", c.LeaseGrace},
	} {
		if f.value < 0 {
			errs = append(errs, fmt.Errorf("health: %s is %v, must be positive", f.name, f.value))
		}
	}
	if c.Confirmations < 1 {
		errs = append(errs, fmt.Errorf("health: Confirmations is %d, must be at least 1", c.Confirmations))
	}
	if c.SuspectMax < c.SuspectFor {
		errs = append(errs, fmt.Errorf("health: SuspectMax %v is shorter than SuspectFor %v", c.SuspectMax, c.SuspectFor))
	}
	if c.LegacyAbnormal != LegacyReport && c.LegacyAbnormal != LegacyFailover {
		errs = append(errs, fmt.Errorf("health: LegacyAbnormal is %q, must be %q or %q", c.LegacyAbnormal, LegacyReport, LegacyFailover))
	}
	return errors.Join(errs...)
}
