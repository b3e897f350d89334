package virtualnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
)

// podLoop drives a PodProvider by the pods that are bound to the node: one
// worker per UID, and housekeeping for what no worker knows.
type podLoop struct {
	cfg      *Config
	provider kri.PodProvider
	reasons  *kri.ReasonCache
	informer cache.SharedIndexInformer
	tidy     chan struct{} // cap 1: housekeeping is due

	mu      sync.Mutex
	workers map[types.UID]*worker
	start   func(*worker) // nil before Run and once Run is ending
}

func newPodLoop(cfg *Config, provider kri.PodProvider) *podLoop {
	informer := coreinformers.NewFilteredPodInformer(cfg.Client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", cfg.Name).String()
		})
	return &podLoop{
		cfg: cfg, provider: provider, reasons: kri.NewReasonCache(), informer: informer,
		tidy: make(chan struct{}, 1), workers: map[types.UID]*worker{},
	}
}

// Run works until ctx ends and waits for its workers. It stops no pod.
func (l *podLoop) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l.mu.Lock()
	l.start = func(w *worker) { wg.Go(func() { w.run(ctx) }) }
	l.mu.Unlock()
	defer func() { // Before wg.Wait: no worker is added from here on.
		l.mu.Lock()
		l.start = nil
		l.mu.Unlock()
		cancel()
	}()
	if _, err := l.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    l.onPod,
		UpdateFunc: func(_, obj any) { l.onPod(obj) },
		DeleteFunc: l.onGone,
	}); err != nil {
		return fmt.Errorf("watching pods: %w", err)
	}
	wg.Go(func() { l.informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), l.informer.HasSynced) {
		return nil // ctx ended.
	}
	l.housekeeping(ctx)
	return nil
}

func (l *podLoop) onPod(obj any) {
	pod, ok := obj.(*v1.Pod)
	if !ok || pod.Spec.NodeName != l.cfg.Name {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// The same name under another UID: the old one is gone, whatever was missed.
	for uid, w := range l.workers {
		if uid != pod.UID && w.named(pod) {
			w.podGone()
		}
	}
	w, ok := l.workers[pod.UID]
	if !ok {
		if l.start == nil {
			return
		}
		w = newWorker(l, pod)
		l.workers[pod.UID] = w
		l.start(w)
	}
	w.update(pod)
}

func (l *podLoop) onGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.workers[pod.UID]; ok {
		w.podGone()
	}
	l.poke()
}

// podChanged is called by the provider when something happened to a pod.
func (l *podLoop) podChanged(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.workers[uid]; ok {
		w.signal()
	}
}

// done removes a worker whose pod is gone and stopped.
func (l *podLoop) done(w *worker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.workers, w.uid)
	l.poke()
}

// poke makes housekeeping run soon.
func (l *podLoop) poke() {
	select {
	case l.tidy <- struct{}{}:
	default:
	}
}

// housekeeping cleans up until ctx ends. A kill that hangs here holds up only
// what no worker looks after.
func (l *podLoop) housekeeping(ctx context.Context) {
	for ctx.Err() == nil {
		if err := l.cleanup(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Housekeeping failed")
		}
		timer := l.cfg.Clock.NewTimer(l.cfg.HousekeepingInterval)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-l.tidy:
		}
		timer.Stop()
	}
}

func (l *podLoop) cleanup(ctx context.Context) error {
	// In this order: what is found now has a worker or an object below if it is
	// wanted, and a pod that is deleted meanwhile still has its worker.
	found, err := l.provider.GetPods(ctx, true)
	if err != nil {
		return fmt.Errorf("listing what pods have left: %w", err)
	}
	busy := map[types.UID]sets.Empty{}
	l.mu.Lock()
	for uid := range l.workers {
		busy[uid] = sets.Empty{}
	}
	l.mu.Unlock()
	var pods []*v1.Pod
	for _, obj := range l.informer.GetStore().List() {
		if pod, ok := obj.(*v1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return l.provider.CleanupPods(ctx, pods, found, busy)
}

// snapshot lists the workers' pods.
func (l *podLoop) snapshot() []workerState {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]workerState, 0, len(l.workers))
	for _, w := range l.workers {
		out = append(out, w.state())
	}
	return out
}

// retryDelay doubles from a quarter of a second to ten seconds.
func retryDelay(failures int) time.Duration {
	const first, limit = 250 * time.Millisecond, 10 * time.Second
	delay := first
	for i := 1; i < failures && delay < limit; i++ {
		delay *= 2
	}
	return min(delay, limit)
}
