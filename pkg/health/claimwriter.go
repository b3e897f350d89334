package health

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	writeTimeout  = 10 * time.Second
	writeRetryMin = time.Second
	writeRetryMax = 5 * time.Minute
	// supportRetry is how long after the server dropped the field it is tried
	// again: it may have been upgraded.
	supportRetry = 30 * time.Minute
)

// claimWriter writes PersistentVolumeClaim.status.healthStatus: what the
// controller plugin says, nothing that the kubelets say. It writes on change
// only, the latest only, by PersistentVolume.
type claimWriter struct {
	client  kubernetes.Interface
	look    listers
	metrics *instruments
	clock   clock.PassiveClock
	queue   workqueue.TypedRateLimitingInterface[string]

	mu     sync.Mutex
	wanted map[string]wantedStatus

	// Owned by run.
	unsupportedUntil time.Time
	forbidden        bool
	// written is what the claims were last made to say where it is not
	// "healthy": the cache may not show it yet.
	written map[string][]v1.VolumeHealthCondition
}

type wantedStatus struct {
	conditions []v1.VolumeHealthCondition
	at         time.Time
}

func newClaimWriter(client kubernetes.Interface, look listers, m *instruments, c clock.PassiveClock) *claimWriter {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](writeRetryMin, writeRetryMax)
	return &claimWriter{
		client:  client,
		look:    look,
		metrics: m,
		clock:   c,
		queue:   workqueue.NewTypedRateLimitingQueue(limiter),
		wanted:  map[string]wantedStatus{},
		written: map[string][]v1.VolumeHealthCondition{},
	}
}

// want has the claim of the PersistentVolume say conditions, in place of what
// was wanted before. Conditions of which none can be written leave the claim as
// it is: an unknown category is not "healthy".
func (w *claimWriter) want(pv string, conditions []volume.Condition, at time.Time) {
	list := apiConditions(conditions)
	if len(list) == 0 && len(conditions) > 0 {
		return
	}
	w.mu.Lock()
	w.wanted[pv] = wantedStatus{conditions: list, at: at}
	w.mu.Unlock()
	w.queue.Add(pv)
}

// run writes until ctx ends.
func (w *claimWriter) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, w.queue.ShutDown)
	defer stop()
	for {
		pv, shutdown := w.queue.Get()
		if shutdown {
			return
		}
		if w.metrics.caught(klog.FromContext(ctx).WithValues("persistentVolume", pv), func() error { w.process(ctx, pv); return nil }) != nil {
			w.queue.AddRateLimited(pv)
		}
		w.queue.Done(pv)
	}
}

// process writes one claim and decides whether to come back to it.
func (w *claimWriter) process(ctx context.Context, pv string) {
	if wait := w.unsupportedUntil.Sub(w.clock.Now()); wait > 0 {
		w.queue.AddAfter(pv, wait)
		return
	}
	w.mu.Lock()
	wanted, ok := w.wanted[pv]
	w.mu.Unlock()
	claim := w.look.claimOf(pv)
	if claim == nil && ok && w.look.bound(pv) {
		w.queue.AddRateLimited(pv) // The claim will show in the cache.
		return
	}
	last, known := w.written[pv]
	if !ok || claim == nil || upToDate(claim.Status.HealthStatus, wanted.conditions) && (!known || slices.Equal(last, wanted.conditions)) {
		w.done(pv, wanted)
		return
	}
	logger := klog.FromContext(ctx).WithValues("claim", klog.KObj(claim))
	written, err := w.patch(ctx, claim, wanted)
	switch {
	case ctx.Err() != nil:
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// The claim is gone, or another one took its name; what the new one is
		// bound to speaks for itself.
		delete(w.written, pv)
		w.done(pv, wanted)
	case apierrors.IsForbidden(err):
		w.metrics.claimWrites.WithLabelValues("forbidden").Inc()
		if !w.forbidden {
			logger.Error(err, "Not allowed to write the health of volumes to their claims; allow patch on persistentvolumeclaims/status")
		}
		w.forbidden = true
		w.queue.AddRateLimited(pv)
	case err != nil:
		w.metrics.claimWrites.WithLabelValues("failed").Inc()
		logger.Error(err, "Writing the health of a volume to its claim failed, trying again")
		w.queue.AddRateLimited(pv)
	case !written:
		w.metrics.claimWrites.WithLabelValues("unsupported").Inc()
		logger.Info("The server has no field status.healthStatus of PersistentVolumeClaim; events and metrics go on", "tryAgainIn", supportRetry)
		w.unsupportedUntil = w.clock.Now().Add(supportRetry)
		w.queue.Forget(pv)
		w.queue.AddAfter(pv, supportRetry)
	default:
		w.metrics.claimWrites.WithLabelValues("written").Inc()
		w.forbidden = false
		if w.written[pv] = wanted.conditions; len(wanted.conditions) == 0 {
			delete(w.written, pv)
		}
		w.done(pv, wanted)
	}
}

// done forgets what was wanted unless something else is wanted meanwhile.
func (w *claimWriter) done(pv string, was wantedStatus) {
	w.queue.Forget(pv)
	w.mu.Lock()
	defer w.mu.Unlock()
	if now, ok := w.wanted[pv]; ok && now.at.Equal(was.at) && slices.Equal(now.conditions, was.conditions) {
		delete(w.wanted, pv)
	}
}

// upToDate reports whether the claim says so already. A claim that says nothing
// is fine for a healthy volume.
func upToDate(status *v1.VolumeHealthStatus, conditions []v1.VolumeHealthCondition) bool {
	if status == nil {
		return len(conditions) == 0
	}
	return slices.Equal(status.HealthConditions, conditions)
}

// patch writes the status, for this very claim only. written is false where the
// server dropped the field.
func (w *claimWriter) patch(ctx context.Context, claim *v1.PersistentVolumeClaim, wanted wantedStatus) (written bool, err error) {
	// A merge patch replaces the list as a whole; null takes it away.
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": claim.UID},
		"status": map[string]any{
			"healthStatus": map[string]any{
				"healthConditions":   wanted.conditions,
				"lastTransitionTime": metav1.NewTime(wanted.at),
			},
		},
	})
	if err != nil {
		return false, fmt.Errorf("encoding health status: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	after, err := w.client.CoreV1().PersistentVolumeClaims(claim.Namespace).
		Patch(ctx, claim.Name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return false, fmt.Errorf("patching status of claim %s: %w", klog.KObj(claim), err)
	}
	return after.Status.HealthStatus != nil, nil
}
