package nodeshare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/utils/clock"
)

// Defaults of Config; the numbers are external-provisioner's.
const (
	DefaultBaseDelay = 20 * time.Second
	DefaultMaxDelay  = time.Minute
	DefaultTimeout   = 15 * time.Second
)

// Place is where the node is; topology.Here is one.
type Place interface {
	// Admitted reports whether the allowedTopologies of a class admit volumes
	// here.
	Admitted(allowed []v1.TopologySelectorTerm) (bool, error)
}

// Config configures a Sharer. Zero durations take the defaults above.
type Config struct {
	// Node is the name of the Node object (NODE_NAME).
	Node  string
	Place Place
	// Immediate: claims that wait for no pod are shared too
	// (--node-deployment-immediate-binding). Without it they are left to somebody
	// else.
	Immediate bool
	// BaseDelay is the longest wait before the first attempt to take a claim. It
	// doubles with each one, up to MaxDelay.
	BaseDelay, MaxDelay time.Duration
	// HasRoom asks the driver whether the volume of a claim fits here. An error
	// that tells by volume.OutcomeRetry that asking again can help has the claim
	// wait; after any other it is taken, so that provisioning it fails where people
	// look. Nil: that is not known.
	HasRoom func(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (bool, error)
	// Client writes claims: patch where that is allowed, else get and update.
	Client  kubernetes.Interface
	Classes storagelisters.StorageClassLister
	// Timeout bounds one request to the API server.
	Timeout time.Duration
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// Random is uniform in [0, 1). Nil: the usual one.
	Random func() float64
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.BaseDelay == 0 {
		cfg.BaseDelay = DefaultBaseDelay
	}
	if cfg.MaxDelay == 0 {
		cfg.MaxDelay = max(DefaultMaxDelay, cfg.BaseDelay)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.HasRoom == nil {
		cfg.HasRoom = func(context.Context, *v1.PersistentVolumeClaim, *storagev1.StorageClass) (bool, error) {
			return true, nil
		}
	}
	return cfg, cfg.validate()
}

func (cfg Config) validate() error {
	var errs []error
	if cfg.Node == "" {
		errs = append(errs, errors.New("the Node must be set"))
	}
	if cfg.Place == nil || cfg.Client == nil || cfg.Classes == nil {
		errs = append(errs, errors.New("the Place, Client and Classes must be set"))
	}
	// Without any wait a lost race would be run again at once, for ever.
	if cfg.BaseDelay < 0 || cfg.MaxDelay < cfg.BaseDelay {
		errs = append(errs, fmt.Errorf("BaseDelay %v must be positive and at most MaxDelay %v", cfg.BaseDelay, cfg.MaxDelay))
	}
	if cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("the Timeout is %v, must be positive", cfg.Timeout))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("nodeshare config: %w", err)
	}
	return nil
}
