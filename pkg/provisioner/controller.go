package provisioner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Defaults, where no option says otherwise. The backoff is the seed's.
const (
	defaultWorkers    = 4
	defaultTimeout    = 15 * time.Second
	defaultRetryStart = 500 * time.Millisecond
	defaultRetryMax   = 2 * time.Minute
	defaultRetry      = 15 * time.Second
)

// ProvisionController provisions PersistentVolumes for PersistentVolumeClaims.
// See the package.
type ProvisionController struct {
	client      kubernetes.Interface
	resync      time.Duration
	name        string
	provisioner Provisioner
	rules       rules
	// threshold is failedRetryThreshold, retryForever switches it off.
	threshold    int
	retryForever bool
	// mistaken is what is wrong with the arguments of the constructor.
	mistaken error

	informers       informers.SharedInformerFactory
	sharedInformers bool
	recorder        record.EventRecorder
	registry        metrics.KubeRegistry
	clock           clock.WithTicker
	metrics         *controllerMetrics

	workers              int
	timeout              time.Duration
	exponential          bool
	retryStart, retryMax time.Duration
	additionalNames      []string
	addFinalizer         bool
	volumeName           func(*v1.PersistentVolumeClaim) string
	onChange             func(*v1.PersistentVolume)
	guardAttached        bool
	holds                func(volume.Handle) bool

	claimInformer, volumeInformer, classInformer, attachmentInformer cache.SharedIndexInformer
	// beside are informers that the provisioner reads.
	beside []cache.InformerSynced

	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister

	ops               *operations
	slow              slowly
	told              told
	claims, deletions *queue
	// queues is closed once there are queues.
	queues    chan struct{}
	started   atomic.Bool
	drain     chan struct{}
	drainOnce sync.Once
}

// NewProvisionController makes a controller for the provisioner of that name; see
// the package for what the parameters say. Options are applied in order. What is
// wrong with the arguments is told by Run.
func NewProvisionController(client kubernetes.Interface, resyncPeriod time.Duration, provisionerName string,
	provisioner Provisioner, serverGitVersion string, exponentialBackOffOnError bool, failedRetryThreshold int,
	opts ...Option,
) *ProvisionController {
	ctrl := &ProvisionController{
		client: client, resync: resyncPeriod, name: provisionerName, provisioner: provisioner,
		threshold: failedRetryThreshold, exponential: exponentialBackOffOnError,
		clock: clock.RealClock{}, workers: defaultWorkers, timeout: defaultTimeout,
		retryStart: defaultRetryStart, retryMax: defaultRetryMax, addFinalizer: true,
		volumeName: func(claim *v1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) },
		onChange:   func(*v1.PersistentVolume) {},
		ops:        newOperations(), metrics: newMetrics(), drain: make(chan struct{}), queues: make(chan struct{}),
	}
	for _, opt := range opts {
		opt(ctrl)
	}
	ctrl.rules = rules{names: append([]string{provisionerName}, ctrl.additionalNames...), finalizer: ctrl.addFinalizer}
	if serverGitVersion != "" {
		server, err := version.ParseSemantic(serverGitVersion)
		if err != nil {
			ctrl.mistaken = fmt.Errorf("serverGitVersion %q: %w", serverGitVersion, err)
		}
		ctrl.rules.server = server
	}
	ctrl.mistaken = errors.Join(ctrl.mistaken, ctrl.validate())
	if ctrl.mistaken == nil {
		ctrl.mistaken = errors.Join(ctrl.takeInformers(), ctrl.register(ctrl.registry))
	}
	return ctrl
}

func (ctrl *ProvisionController) validate() error {
	var errs []error
	if ctrl.client == nil || ctrl.provisioner == nil {
		errs = append(errs, errors.New("client and provisioner must be given"))
	}
	if ctrl.name == "" {
		errs = append(errs, errors.New("provisionerName must not be empty"))
	}
	if ctrl.workers < 1 || ctrl.timeout <= 0 || ctrl.resync < 0 {
		errs = append(errs, errors.New("the number of workers and the timeout must be positive, resyncPeriod not negative"))
	}
	if ctrl.retryStart <= 0 || ctrl.retryMax < ctrl.retryStart {
		errs = append(errs, fmt.Errorf("the first pause after a failure, %v, must be positive and at most the longest, %v", ctrl.retryStart, ctrl.retryMax))
	}
	return errors.Join(errs...)
}

// takeInformers asks the factory for what is watched, so that it is warm before
// Run.
func (ctrl *ProvisionController) takeInformers() error {
	if ctrl.informers == nil {
		ctrl.informers = informers.NewSharedInformerFactory(ctrl.client, ctrl.resync)
	}
	core, storage := ctrl.informers.Core().V1(), ctrl.informers.Storage().V1()
	ctrl.claimInformer = core.PersistentVolumeClaims().Informer()
	ctrl.volumeInformer, ctrl.volumes = core.PersistentVolumes().Informer(), core.PersistentVolumes().Lister()
	ctrl.classInformer, ctrl.classes = storage.StorageClasses().Informer(), storage.StorageClasses().Lister()
	if err := ctrl.claimInformer.AddIndexers(cache.Indexers{byUID: claimUID}); err != nil {
		return fmt.Errorf("indexing claims: %w", err)
	}
	if err := ctrl.volumeInformer.AddIndexers(cache.Indexers{byHandle: volumeHandle}); err != nil {
		return fmt.Errorf("indexing PersistentVolumes: %w", err)
	}
	if !ctrl.guardAttached {
		return nil
	}
	ctrl.attachmentInformer = storage.VolumeAttachments().Informer()
	if err := ctrl.attachmentInformer.AddIndexers(cache.Indexers{bySource: attachmentSource}); err != nil {
		return fmt.Errorf("indexing VolumeAttachments: %w", err)
	}
	return nil
}

// Run provisions and deletes until stopCh is closed, and waits for what is under
// way. It logs what keeps it from running.
func (ctrl *ProvisionController) Run(stopCh <-chan struct{}) {
	ctx := wait.ContextForChannel(stopCh)
	if err := ctrl.RunContext(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "The provision controller does not run", "provisioner", ctrl.name)
	}
}

// RunContext is Run until Drain is called or ctx ends. Calls under way are broken
// off with ctx, and so it is to end only when the lease is lost, or when a drain
// takes too long. It returns nil after either, and an error for what keeps it
// from running. It is to be called once.
func (ctrl *ProvisionController) RunContext(ctx context.Context) error {
	if ctrl.mistaken != nil {
		return fmt.Errorf("provision controller %s: %w", ctrl.name, ctrl.mistaken)
	}
	if ctrl.started.Swap(true) {
		return errors.New("provisioner: Run was called twice")
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithName("provisioner"))
	if ctrl.recorder == nil {
		defer ctrl.ownRecorder(ctx)()
	}
	ctrl.claims = newQueue("claims", ctrl.clock, ctrl.pause())
	ctrl.deletions = newQueue("volumes", ctrl.clock, ctrl.pause())
	close(ctrl.queues)
	defer ctrl.claims.ShutDown()
	defer ctrl.deletions.ShutDown()
	intake, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		select {
		case <-ctrl.drain:
			stop()
		case <-intake.Done():
		}
	}()
	if !ctrl.sharedInformers {
		ctrl.informers.Start(intake.Done())
		defer func() {
			stop() // Shutdown waits for it
			ctrl.informers.Shutdown()
		}()
	}
	if !cache.WaitForCacheSync(intake.Done(), ctrl.synced()...) {
		return nil
	}
	ctrl.resume(intake)
	if intake.Err() != nil {
		return nil
	}
	unsubscribe, err := ctrl.subscribe()
	defer unsubscribe()
	if err != nil {
		return fmt.Errorf("watching claims and volumes: %w", err)
	}
	ctrl.work(ctx, intake)
	return nil
}

// work runs the workers until intake ends, and waits for them.
func (ctrl *ProvisionController) work(ctx, intake context.Context) {
	var workers sync.WaitGroup
	for range ctrl.workers {
		workers.Go(func() { ctrl.worker(ctx, ctrl.claims, ctrl.syncClaim) })
		workers.Go(func() { ctrl.worker(ctx, ctrl.deletions, ctrl.syncVolume) })
	}
	klog.FromContext(ctx).Info("Started", "provisioner", ctrl.name, "workers", ctrl.workers)
	<-intake.Done()
	ctrl.claims.ShutDown()
	ctrl.deletions.ShutDown()
	workers.Wait()
}

// Drain begins nothing new; Run returns once what is under way has ended.
func (ctrl *ProvisionController) Drain() { ctrl.drainOnce.Do(func() { close(ctrl.drain) }) }

func (ctrl *ProvisionController) draining() bool {
	select {
	case <-ctrl.drain:
		return true
	default:
		return false
	}
}

// resume takes up what an earlier process has begun.
func (ctrl *ProvisionController) resume(ctx context.Context) {
	durable, ok := ctrl.provisioner.(DurableProvisioner)
	if !ok {
		return
	}
	begun, err := durable.Begun(ctx, ctrl.takeUp)
	for failures := 1; err != nil && ctx.Err() == nil; failures++ {
		err = fmt.Errorf("reading which volumes were begun: %w; nothing is provisioned or deleted before that", err)
		pause := min(ctrl.pause()(failures), defaultRetry)
		klog.FromContext(ctx).Error(err, "Failed, trying again", "failures", failures, "after", pause)
		ctrl.tellWaiting(ctx, err.Error())
		select {
		case <-ctx.Done():
		case <-ctrl.clock.After(pause):
		}
		begun, err = durable.Begun(ctx, ctrl.takeUp)
	}
	ctrl.told.forgetAll()
	for _, claim := range begun {
		ctrl.takeUp(claim)
	}
}

// tellWaiting tells the claims and the PersistentVolumes that wait for us why they
// do, once each. Those that others work on, or may, hear nothing: one event for
// each process is too many.
func (ctrl *ProvisionController) tellWaiting(ctx context.Context, why string) {
	for _, obj := range ctrl.claimInformer.GetStore().List() {
		claim, ok := obj.(*v1.PersistentVolumeClaim)
		if ok && ctrl.rules.addressed(claim) && claim.DeletionTimestamp == nil && ctrl.owns(ctx, claim) && ctrl.told.news(claim.UID, why) {
			ctrl.recorder.Event(claim, v1.EventTypeWarning, ReasonProvisioningFailed, why)
		}
	}
	for _, obj := range ctrl.volumeInformer.GetStore().List() {
		pv, ok := obj.(*v1.PersistentVolume)
		if ok && ctrl.rules.shouldDelete(pv) && ctrl.deletes(ctx, pv) && ctrl.told.news(pv.UID, why) {
			ctrl.recorder.Event(pv, v1.EventTypeWarning, ReasonVolumeFailedDelete, why)
		}
	}
}

// takeUp goes on with a claim whose volume may exist. What we have begun
// ourselves meanwhile is not set back.
func (ctrl *ProvisionController) takeUp(claim *v1.PersistentVolumeClaim) {
	ctrl.ops.find(claim.UID, operation{claim: claim, found: true, since: ctrl.clock.Now()})
	ctrl.claims.renew(string(claim.UID))
}

func (ctrl *ProvisionController) settle(uid types.UID) {
	if durable, ok := ctrl.provisioner.(DurableProvisioner); ok {
		durable.Settle(uid)
	}
}

// pause is the backoff of both queues.
func (ctrl *ProvisionController) pause() func(int) time.Duration {
	if ctrl.exponential {
		return exponential(ctrl.retryStart, ctrl.retryMax)
	}
	constant := ctrl.resync
	if constant == 0 {
		constant = defaultRetry
	}
	return func(int) time.Duration { return constant }
}

// component is how our events are signed; the form is the seed's.
func (ctrl *ProvisionController) component() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s %s %s", ctrl.name, host, uuid.NewString())
}
