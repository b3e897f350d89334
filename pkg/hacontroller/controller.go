package hacontroller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	// How many calls of a kind are in flight for one node.
	callsPerNode = 16

	retryBase = 100 * time.Millisecond
	retryMax  = 30 * time.Second
)

type haController struct {
	name    string
	client  kubernetes.Interface
	failing <-chan string

	driver         string
	recorder       record.EventRecorder
	elector        LeaderElector
	podListOptions metav1.ListOptions
	interval       time.Duration
	targeter       Targeter
	fencer         Fencer
	factory        informers.SharedInformerFactory
	ownFactory     bool
	strict         bool
	evictDeadline  time.Duration
	evictGraceMax  time.Duration
	overridePDB    bool
	recovered      func(handle volume.Handle, node string) bool
	fenceTimeout   time.Duration
	registry       metrics.KubeRegistry
	clock          clock.WithTicker
	workers        int
	observer       func(StepEvent)
	tracer         trace.Tracer

	// fault is what was wrong at construction; Run returns it.
	fault    error
	selector podSelector
	caches   caches
	metrics  *stepMetrics
	queue    workqueue.TypedRateLimitingInterface[string]
	// calls are the evictions and fences in flight.
	calls sync.WaitGroup

	// mu guards what is remembered between two passes.
	mu      sync.Mutex
	marks   map[string]*mark
	tracks  map[types.UID]*track
	refused map[types.UID]refusal
	// slots bound the fences in flight, by node.
	slots map[string]chan struct{}
	// evicting counts the evictions that wait for their answers.
	evicting atomic.Int32
}

// NewHAController creates a controller called name, which is used in logs, that
// acts on the PersistentVolume names received from pvWithFailingVAUpdates. What
// is wrong with the arguments is returned by Run.
func NewHAController(name string, kubeClient kubernetes.Interface, pvWithFailingVAUpdates <-chan string, opts ...Option) *haController {
	hac := &haController{
		name: name, client: kubeClient, failing: pvWithFailingVAUpdates,
		interval:      DefaultReconcileInterval,
		ownFactory:    true,
		evictDeadline: DefaultEvictDeadline,
		evictGraceMax: DefaultEvictGraceMax,
		fenceTimeout:  DefaultFenceTimeout,
		clock:         clock.RealClock{},
		workers:       DefaultWorkers,
		tracer:        noop.NewTracerProvider().Tracer(""),
		slots:         map[string]chan struct{}{},
		marks:         map[string]*mark{},
		tracks:        map[types.UID]*track{},
		refused:       map[types.UID]refusal{},
	}
	for _, opt := range opts {
		opt(hac)
	}
	hac.fault = hac.complete()
	return hac
}

// complete checks the options and takes the informers, so that a shared factory
// can be started before Run is called.
func (hac *haController) complete() error {
	switch {
	case hac.client == nil:
		return errors.New("hacontroller: a Kubernetes client is required")
	case hac.failing == nil:
		return errors.New("hacontroller: a channel of failing PersistentVolumes is required")
	case hac.tracer == nil:
		return errors.New("hacontroller: the tracer is nil")
	case hac.clock == nil:
		return errors.New("hacontroller: the clock is nil")
	case hac.interval <= 0 || hac.evictDeadline <= 0 || hac.evictGraceMax <= 0 || hac.fenceTimeout <= 0:
		return errors.New("hacontroller: the reconcile interval, evict deadline, evict grace and fence timeout must be positive")
	case hac.workers <= 0:
		return fmt.Errorf("hacontroller: %d workers, at least one is required", hac.workers)
	case hac.targeter == nil && hac.fencer != nil:
		return errors.New("hacontroller: a Fencer is of no use without Targets")
	case hac.targeter != nil && hac.driver == "":
		return errors.New("hacontroller: Targets need the attacher's name, which names the hold")
	case hac.ownFactory == (hac.factory != nil):
		return errors.New("hacontroller: the informer factory is nil")
	}
	var err error
	if hac.selector, err = newPodSelector(hac.podListOptions); err != nil {
		return err
	}
	if hac.ownFactory {
		hac.factory = informers.NewSharedInformerFactoryWithOptions(hac.client, 0,
			informers.WithTransform(stripManagedFields))
	}
	if hac.caches, err = newCaches(hac.factory, hac.targeter != nil); err != nil {
		return err
	}
	hac.metrics = newStepMetrics()
	return hac.metrics.register(hac.registry)
}

// Run works until ctx ends, and returns its error; or until the channel of
// failing volumes is closed, which is an error. It waits for all it started.
func (hac *haController) Run(ctx context.Context) error {
	if hac.fault != nil {
		return hac.fault
	}
	logger := klog.FromContext(ctx).WithValues("controller", hac.name)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	var wg sync.WaitGroup
	defer hac.endTraces()
	defer hac.calls.Wait() // after the workers, which begin them
	defer wg.Wait()
	defer cancel()

	hac.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryBase, retryMax),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: "hacontroller", Clock: hac.clock},
	)
	defer hac.queue.ShutDown()
	if hac.ownFactory {
		hac.factory.Start(ctx.Done())
		defer func() { cancel(); hac.factory.Shutdown() }()
	}
	synced, unsubscribe, err := hac.subscribe()
	defer unsubscribe()
	if err != nil {
		return err
	}
	if !cache.WaitFor(ctx, "", synced...) {
		return ctx.Err()
	}
	for range hac.workers {
		wg.Go(func() { hac.work(ctx) })
	}
	logger.Info("Started", "driver", hac.driver, "targets", hac.targeter != nil, "fence", hac.fencer != nil)
	return hac.receive(ctx)
}

// receive takes in failing names until ctx ends or the channel is closed. Those
// that wait in the channel's buffer are taken in together.
func (hac *haController) receive(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case pv, ok := <-hac.failing:
			if !ok {
				return errors.New("the channel of failing PersistentVolumes was closed")
			}
			pvs := []string{pv}
			for range len(hac.failing) {
				if pv, ok = <-hac.failing; ok {
					pvs = append(pvs, pv)
				}
			}
			hac.markAll(ctx, pvs)
		}
	}
}

// leads reports whether this process may write now.
func (hac *haController) leads() bool {
	return hac.elector == nil || hac.elector.IsLeader()
}
