package source

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Defaults of ProtectionConfig; the numbers are external-provisioner's.
const (
	DefaultThreads            = 1
	DefaultRetryIntervalStart = time.Second
	DefaultRetryIntervalMax   = 5 * time.Minute
)

const (
	fieldManager = "ha-sidecar"
	// recheckInterval is when a source is looked at again that an intent still
	// needs, though nobody told of the intent's end.
	recheckInterval = time.Minute
	// pageSize of a sweep's lists.
	pageSize = 500
)

var errNotLeader = errors.New("no longer the leader")

// ProtectionConfig configures Protection. Zero numbers take the defaults above,
// but for SweepInterval.
type ProtectionConfig struct {
	// DriverName is the CSI driver whose sources these are: the finalizers bear no
	// driver's name, and another driver's are its own provisioner's.
	DriverName string
	Dynamic    dynamic.Interface
	// Claims gets an index. Run waits for it and for Volumes to have synced.
	Claims  coreinformers.PersistentVolumeClaimInformer
	Volumes coreinformers.PersistentVolumeInformer
	// InUse reports whether an intent, of this or a former leader, needs the
	// source. It must say yes for as long as that is not known.
	InUse func(Ref) bool
	// Elsewhere is where an intent of another process needs the source, for people;
	// empty: nowhere. It is asked last before a finalizer comes off, after InUse,
	// and its error keeps the finalizer on. Nil: all intents are in InUse.
	Elsewhere func(context.Context, Ref) (where string, err error)
	// Near reports whether this process is the first to look after what a claim
	// says of its sources, or of itself as one. The others look later, when there
	// is mostly nothing left to do. Nil: it is for all claims.
	Near func(*v1.PersistentVolumeClaim) bool
	// IsLeader is asked before each write. Nil: always the leader.
	IsLeader func() bool
	// Threads take finalizers off (--cloning-protection-threads).
	Threads int
	// SweepInterval is the time between two looks at all VolumeSnapshots for
	// finalizers that nobody needs (--snapshot-orphan-sweep-interval). The first is
	// at the start. 0: never; then those that a process left behind stay.
	SweepInterval time.Duration
	// RetryIntervalStart and RetryIntervalMax bound the backoff of a source.
	RetryIntervalStart, RetryIntervalMax time.Duration
	// Timeout bounds one request to the API server.
	Timeout time.Duration
	// Clock defaults to the real one.
	Clock clock.WithTicker
}

func (cfg ProtectionConfig) withDefaults() (ProtectionConfig, error) {
	if cfg.Threads == 0 {
		cfg.Threads = DefaultThreads
	}
	if cfg.RetryIntervalStart == 0 {
		cfg.RetryIntervalStart = DefaultRetryIntervalStart
	}
	if cfg.RetryIntervalMax == 0 {
		cfg.RetryIntervalMax = max(DefaultRetryIntervalMax, cfg.RetryIntervalStart)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Elsewhere == nil {
		cfg.Elsewhere = func(context.Context, Ref) (string, error) { return "", nil }
	}
	if cfg.Near == nil {
		cfg.Near = func(*v1.PersistentVolumeClaim) bool { return true }
	}
	if cfg.IsLeader == nil {
		cfg.IsLeader = func() bool { return true }
	}
	var errs []error
	if cfg.DriverName == "" {
		errs = append(errs, errors.New("no DriverName is given"))
	}
	if cfg.Dynamic == nil || cfg.Claims == nil || cfg.Volumes == nil {
		errs = append(errs, errors.New("no Dynamic, no Claims or no Volumes are given"))
	}
	if cfg.InUse == nil {
		errs = append(errs, errors.New("no InUse is given"))
	}
	if cfg.Threads < 0 {
		errs = append(errs, fmt.Errorf("the number of Threads is %d, must be positive", cfg.Threads))
	}
	if cfg.SweepInterval < 0 || cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("the SweepInterval is %v and Timeout %v, must not be negative", cfg.SweepInterval, cfg.Timeout))
	}
	if cfg.RetryIntervalStart < 0 || cfg.RetryIntervalMax < cfg.RetryIntervalStart {
		errs = append(errs, fmt.Errorf("the RetryIntervalStart %v must be positive and at most RetryIntervalMax %v", cfg.RetryIntervalStart, cfg.RetryIntervalMax))
	}
	if err := errors.Join(errs...); err != nil {
		return cfg, fmt.Errorf("source protection config: %w", err)
	}
	return cfg, nil
}

// Protection puts the finalizers on sources, and takes them off again.
type Protection struct {
	cfg     ProtectionConfig
	live    live
	claims  cache.SharedIndexInformer
	volumes corelisters.PersistentVolumeLister
	holds   *holds
	// warned: it was said that snapshots cannot be protected.
	warned atomic.Bool

	mu sync.Mutex
	// queue is there while Run runs; what was to be looked at before is in early.
	queue workqueue.TypedRateLimitingInterface[key]
	early map[key]struct{}
}

// NewProtection returns a Protection, and adds its index to the informer of claims.
func NewProtection(cfg ProtectionConfig) (*Protection, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Protection{
		cfg:     cfg,
		live:    live{cfg.Dynamic, cfg.Timeout},
		claims:  cfg.Claims.Informer(),
		volumes: cfg.Volumes.Lister(),
		holds:   newHolds(),
		early:   map[key]struct{}{},
	}
	if err := p.claims.AddIndexers(indexers()); err != nil {
		return nil, fmt.Errorf("indexing claims by their data source: %w", err)
	}
	return p, nil
}

// Release says that user needs the source no more: its volume is made, or will
// not be, and no call for it is in flight. The finalizer comes off in the
// background unless somebody else needs it; that of a claim only once the claim
// is being deleted. The end of an intent that another process protected the
// source for is told in the same way.
func (p *Protection) Release(ref Ref, user types.UID) {
	p.holds.drop(ref.key(), user)
	p.enqueue(ref.key())
}

// heard has a source looked at of which an event of a claim tells.
func (p *Protection) heard(claim *v1.PersistentVolumeClaim, k key) {
	if p.cfg.Near(claim) {
		p.enqueue(k)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue != nil {
		p.queue.AddAfter(k, wait.Jitter(recheckInterval, 1))
	}
}

// enqueue has a source looked at.
func (p *Protection) enqueue(k key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue == nil {
		p.early[k] = struct{}{}
		return
	}
	p.queue.Add(k)
}
