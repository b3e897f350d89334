package csiprovisioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
)

// DefaultTimeout bounds one call to the driver.
const DefaultTimeout = 15 * time.Second

// Driver is what is needed of a CSI driver. An error tells by volume.OutcomeOf
// what the call left behind; one that does not tell counts as uncertain.
// status.FromError of grpc finds its code.
type Driver interface {
	CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error)
	DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error)
}

// Capabilities of the driver that shape a request.
type Capabilities struct {
	// CreateDelete: CREATE_DELETE_VOLUME. Without it nothing is provisioned.
	CreateDelete bool
	// Topology: VOLUME_ACCESSIBILITY_CONSTRAINTS, and the feature is on.
	Topology bool
	// Modify: MODIFY_VOLUME, and the feature is on.
	Modify bool
	// SingleNodeMultiWriter: SINGLE_NODE_MULTI_WRITER.
	SingleNodeMultiWriter bool
}

// Journal keeps intents durable.
type Journal interface {
	Open(ctx context.Context) (map[string]string, error)
	Put(ctx context.Context, key, value string) error
	Remove(key string)
	// Page is the ConfigMap that a record is on, nil for none.
	Page(key string) *v1.ObjectReference
	// Unread is what Open found that may be records and that it could not read.
	Unread() []journal.Unread
}

// Topology tells where a volume may and should be.
type Topology interface {
	Requirements(claimName string, allowed []v1.TopologySelectorTerm, selectedNode string) (*csi.TopologyRequirement, error)
}

// Sources resolves the data sources of claims.
type Sources interface {
	Resolve(ctx context.Context, claim *v1.PersistentVolumeClaim, provisionerName string) (*source.Source, error)
}

// Protection keeps a source while a volume is made of it. user is the claim. An
// error that is a *source.Unprotected does not keep from making it.
type Protection interface {
	Protect(ctx context.Context, ref source.Ref, user types.UID) error
	Release(ref source.Ref, user types.UID)
}

// Config configures a Provisioner.
type Config struct {
	DriverName string
	Driver     Driver
	// Capabilities is asked for each volume, since a driver may come back with
	// others.
	Capabilities func() Capabilities
	Client       kubernetes.Interface
	// Classes serve the secrets of volumes whose PersistentVolume does not name
	// them.
	Classes  storagelisters.StorageClassLister
	Journal  Journal
	Topology Topology
	Sources  Sources
	Protection
	// Volumes tell which volumes are in use, lest one be deleted for another's
	// fault.
	Volumes corelisters.PersistentVolumeLister
	// Recorder gets the events of a claim that is left to a populator, or whose
	// source cannot be protected, and of a ConfigMap whose records cannot be read.
	Recorder record.EventRecorder
	// Registry gets the metrics. Nil: they are not registered.
	Registry metrics.KubeRegistry
	// Clock is the real one if nil.
	Clock clock.PassiveClock

	// Timeout bounds one call to the driver. Zero takes the default.
	Timeout time.Duration
	// DefaultFSType is used where the class names none; it may be empty.
	DefaultFSType string
	// ExtraCreateMetadata adds the names of claim and PersistentVolume to the
	// parameters.
	ExtraCreateMetadata bool
	// PublishReadOnly marks volumes read-only that can only be read.
	PublishReadOnly bool
	// Identity is written into the attributes of each volume.
	Identity string
	// Share tells whether a claim is to be provisioned by this process, see
	// provisioner.Sharer. Nil: all are.
	Share func(ctx context.Context, claim *v1.PersistentVolumeClaim) (mine bool, again time.Duration, err error)
	// Owns tells, calling and writing nothing, whether a claim is this process's
	// already. Nil: all are.
	Owns func(claim *v1.PersistentVolumeClaim) bool
	// Mine tells whether a volume is to be deleted by this process. Nil: all are.
	Mine func(pv *v1.PersistentVolume) bool
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Share == nil {
		cfg.Share = func(context.Context, *v1.PersistentVolumeClaim) (bool, time.Duration, error) { return true, 0, nil }
	}
	if cfg.Owns == nil {
		cfg.Owns = func(*v1.PersistentVolumeClaim) bool { return true }
	}
	if cfg.Mine == nil {
		cfg.Mine = func(*v1.PersistentVolume) bool { return true }
	}
	return cfg, cfg.validate()
}

func (cfg Config) validate() error {
	var errs []error
	for what, missing := range map[string]bool{
		"DriverName": cfg.DriverName == "", "Driver": cfg.Driver == nil, "Capabilities": cfg.Capabilities == nil,
		"Client": cfg.Client == nil, "Classes": cfg.Classes == nil, "Journal": cfg.Journal == nil,
		"Topology": cfg.Topology == nil, "Sources": cfg.Sources == nil, "Protection": cfg.Protection == nil, "Volumes": cfg.Volumes == nil, "Recorder": cfg.Recorder == nil,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("%s must be set", what))
		}
	}
	if cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("the timeout %v must not be negative", cfg.Timeout))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("csiprovisioner config: %w", err)
	}
	return nil
}
