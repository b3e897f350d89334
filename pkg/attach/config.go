package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Defaults of Config; the numbers are external-attacher's.
const (
	DefaultWorkers            = 10
	DefaultTimeout            = 15 * time.Second
	DefaultRetryIntervalStart = time.Second
	DefaultRetryIntervalMax   = 5 * time.Minute
	DefaultEvidenceInterval   = time.Minute
)

// Driver is what attach needs of a CSI driver. An error tells by
// volume.OutcomeOf what the call left behind; one that does not tell counts as
// uncertain. status.FromError of grpc finds its code.
type Driver interface {
	ControllerPublish(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error)
	ControllerUnpublish(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error)
}

// Capabilities are the capabilities of the driver's controller that shape a
// publish request.
type Capabilities struct {
	// PublishReadOnly: PUBLISH_READONLY. Without it readonly is never set.
	PublishReadOnly bool
	// SingleNodeMultiWriter: SINGLE_NODE_MULTI_WRITER. With it ReadWriteOnce
	// and ReadWriteOncePod become the finer access modes of CSI 1.5.
	SingleNodeMultiWriter bool
	// TellsPublished: Evidence can be asked.
	TellsPublished bool
}

// Evidence is where a driver says that its volumes are published.
type Evidence interface {
	// Published returns node IDs by volume, at least for those of handles that
	// the driver tells of. A volume that is left out is one of which nothing is
	// known; an error means that nothing is known at all.
	Published(ctx context.Context, handles []volume.Handle) (map[volume.Handle][]string, error)
}

// Config configures a Controller. Zero numbers take the defaults above.
type Config struct {
	// DriverName is the name that VolumeAttachments give as spec.attacher.
	DriverName string
	Driver     Driver
	// Capabilities is asked before each publish, since a driver may come back
	// with others. Nil: none.
	Capabilities func() Capabilities
	// Evidence is asked every EvidenceInterval, if Capabilities says that it can
	// be. Nil: never.
	Evidence         Evidence
	EvidenceInterval time.Duration
	// ResyncInterval is the time between two looks at what is not as it should be.
	// Zero: never.
	ResyncInterval time.Duration
	// DetachOrphans: a volume that is published to a node of the cluster for no
	// VolumeAttachment is unpublished, once that was seen twice.
	DetachOrphans bool
	// ManualDetachDelay is for how long at most a volume is not detached whose
	// VolumeAttachment was deleted by hand while a Ready node uses it. 0: it is
	// detached at once, and told of.
	ManualDetachDelay time.Duration
	// Trivial is for a driver without PUBLISH_UNPUBLISH_VOLUME:
	// VolumeAttachments are marked attached without a call, and finalizers that
	// an older setup left are removed.
	Trivial bool
	// DefaultFSType is used where a PersistentVolume names none. May be empty.
	DefaultFSType string

	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// Recorder gets events on VolumeAttachments. Nil: no events.
	Recorder record.EventRecorder
	// Registry gets the metrics. Nil: they are not registered.
	Registry metrics.KubeRegistry
	// Clock defaults to the real one.
	Clock clock.WithTicker

	// Workers is the number of workers of the attach lane, and again of the
	// detach lane.
	Workers int
	// Timeout bounds each CSI call, and each request to the API server.
	Timeout time.Duration
	// RetryIntervalStart and RetryIntervalMax bound the backoff of a key.
	RetryIntervalStart, RetryIntervalMax time.Duration
	// HoldOff is for how long after Run began no call is made for a key that a
	// former leader may have a call in flight for: the longest deadline of a
	// publish that any leader may have set. It is raised to Timeout.
	HoldOff time.Duration
	// Released is told of a volume that no node has any more, see Holds. It must
	// not block. Nil: nobody is told.
	Released func(volume.Handle)
	// IsLeader is asked before each write and each CSI call; it goes by this
	// process's monotonic clock. Nil: always the leader.
	IsLeader func() bool
}

// withDefaults returns the config with defaults filled in, or what is wrong
// with it.
func (cfg Config) withDefaults() (Config, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Workers == 0 {
		cfg.Workers = DefaultWorkers
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.RetryIntervalStart == 0 {
		cfg.RetryIntervalStart = DefaultRetryIntervalStart
	}
	if cfg.RetryIntervalMax == 0 {
		cfg.RetryIntervalMax = max(DefaultRetryIntervalMax, cfg.RetryIntervalStart)
	}
	if cfg.EvidenceInterval == 0 {
		cfg.EvidenceInterval = DefaultEvidenceInterval
	}
	if cfg.IsLeader == nil {
		cfg.IsLeader = func() bool { return true }
	}
	if cfg.Released == nil {
		cfg.Released = func(volume.Handle) {}
	}
	if cfg.Capabilities == nil {
		cfg.Capabilities = func() Capabilities { return Capabilities{} }
	}
	if err := cfg.validate(); err != nil {
		return cfg, err
	}
	cfg.HoldOff = max(cfg.HoldOff, cfg.Timeout)
	return cfg, nil
}

func (cfg Config) validate() error {
	var errs []error
	if cfg.DriverName == "" {
		errs = append(errs, errors.New("DriverName must be set"))
	}
	if cfg.Driver == nil && !cfg.Trivial {
		errs = append(errs, errors.New("attach: Driver must be set"))
	}
	if cfg.Client == nil {
		errs = append(errs, errors.New("attach: Client must be set"))
	}
	if cfg.Informers == nil {
		errs = append(errs, errors.New("attach: Informers must be set"))
	}
	if cfg.Workers < 0 {
		errs = append(errs, fmt.Errorf("attach: Workers is %d, must be positive", cfg.Workers))
	}
	if cfg.Timeout < 0 || cfg.HoldOff < 0 {
		errs = append(errs, errors.New("attach: Timeout and HoldOff must not be negative"))
	}
	if cfg.ManualDetachDelay < 0 {
		errs = append(errs, fmt.Errorf("ManualDetachDelay is %v, must not be negative", cfg.ManualDetachDelay))
	}
	if cfg.EvidenceInterval < 0 || cfg.ResyncInterval < 0 {
		errs = append(errs, fmt.Errorf("EvidenceInterval is %v and ResyncInterval %v, must not be negative", cfg.EvidenceInterval, cfg.ResyncInterval))
	}
	if cfg.RetryIntervalStart < 0 || cfg.RetryIntervalMax < cfg.RetryIntervalStart {
		errs = append(errs, fmt.Errorf("RetryIntervalStart %v must be positive and at most RetryIntervalMax %v", cfg.RetryIntervalStart, cfg.RetryIntervalMax))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("attach config: %w", err)
	}
	return nil
}
