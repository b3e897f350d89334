package capacity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	storageinformers "k8s.io/client-go/informers/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// Defaults of Config; the numbers are external-provisioner's.
const (
	DefaultThreads            = 1
	DefaultPollInterval       = time.Minute
	DefaultTimeout            = 10 * time.Second
	DefaultRetryIntervalStart = time.Second
	DefaultRetryIntervalMax   = 5 * time.Minute
)

// Driver is what capacity needs of a CSI driver, which must have GET_CAPACITY.
type Driver interface {
	GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error)
}

// Segments is where the driver is. topology.Source and topology.Fixed are such;
// for a driver without topology it is topology.Fixed{{}}, which is one place.
type Segments interface {
	// Segments returns all places now. An error means that they are not known.
	Segments() ([]topology.Segment, error)
	// HasSynced reports whether Segments can be believed.
	HasSynced() bool
	// Subscribe has changed called whenever Segments may have another answer.
	Subscribe(changed func()) (unsubscribe func(), err error)
}

// Config configures a Controller. Zero numbers take the defaults above.
type Config struct {
	// DriverName is the provisioner of the storage classes, and the value of
	// LabelDriver.
	DriverName string
	// ManagedBy is the value of LabelManagedBy, see there.
	ManagedBy string
	// Namespace is where the objects are, and no others of ours.
	Namespace string
	// Owner is set as the owner of each object, so that they go when it goes; see
	// FindOwner. Nil: nobody owns them.
	Owner *metav1.OwnerReference

	Driver   Driver
	Segments Segments
	// Client writes, lists and watches CSIStorageCapacity objects of
	// storage.k8s.io/v1.
	Client  kubernetes.Interface
	Classes storageinformers.StorageClassInformer
	// ImmediateBinding: classes with immediate binding get objects too. Usually
	// only those with WaitForFirstConsumer do, since nobody reads the others.
	ImmediateBinding bool

	// Threads is how many items are worked on at once.
	Threads int
	// PollInterval is the time between two looks at an item, give or take a fifth.
	PollInterval time.Duration
	// Timeout bounds each GetCapacity and each write.
	Timeout time.Duration
	// RetryIntervalStart and RetryIntervalMax bound the backoff of an item.
	RetryIntervalStart, RetryIntervalMax time.Duration
	// IsLeader is asked before each call to the driver and each write. Nil: always
	// the leader.
	IsLeader func() bool
	// Report is told when the API server refuses to let us work, with all that it
	// refuses and what to grant, and with nil once it refuses nothing any more. It
	// must not block. Nil: it is only logged. A Teller makes events of it.
	Report func(err error)
	// Registry gets the metrics. Nil: they are not registered.
	Registry metrics.KubeRegistry
	// Clock defaults to the real one.
	Clock clock.WithTicker
}

// withDefaults returns the config with defaults filled in, or what is wrong with
// it.
func (cfg Config) withDefaults() (Config, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Threads == 0 {
		cfg.Threads = DefaultThreads
	}
	if cfg.PollInterval == 0 {
		cfg.PollInterval = DefaultPollInterval
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
	if cfg.IsLeader == nil {
		cfg.IsLeader = func() bool { return true }
	}
	if cfg.Report == nil {
		cfg.Report = func(error) {}
	}
	return cfg, cfg.validate()
}

func (cfg Config) validate() error {
	var errs []error
	for name, value := range map[string]string{"DriverName": cfg.DriverName, "ManagedBy": cfg.ManagedBy} {
		if value == "" {
			errs = append(errs, fmt.Errorf("%s must be set", name))
		} else if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%s is %q, which is no label value: %s", name, value, strings.Join(problems, ", ")))
		}
	}
	if cfg.Namespace == "" {
		errs = append(errs, errors.New("the Namespace must be set"))
	}
	if cfg.Driver == nil || cfg.Segments == nil || cfg.Client == nil || cfg.Classes == nil {
		errs = append(errs, errors.New("the Driver, Segments, Client and Classes must be set"))
	}
	if cfg.Threads < 0 || cfg.PollInterval < 0 || cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("the number of Threads is %d, PollInterval %v and Timeout %v, must be positive", cfg.Threads, cfg.PollInterval, cfg.Timeout))
	}
	if cfg.RetryIntervalStart < 0 || cfg.RetryIntervalMax < cfg.RetryIntervalStart {
		errs = append(errs, fmt.Errorf("RetryIntervalStart %v must be positive and at most RetryIntervalMax %v", cfg.RetryIntervalStart, cfg.RetryIntervalMax))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("capacity config: %w", err)
	}
	return nil
}
