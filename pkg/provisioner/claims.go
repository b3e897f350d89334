package provisioner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// worker takes keys from a queue until it is shut down.
func (ctrl *ProvisionController) worker(ctx context.Context, q *queue, sync func(context.Context, string) error) {
	for {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		ctrl.process(ctx, q, key, sync)
	}
}

// process works on one key. A panic in it is caught and backs the key off: one
// bad object must not stop the others.
func (ctrl *ProvisionController) process(ctx context.Context, q *queue, key string, sync func(context.Context, string) error) {
	defer q.Done(key)
	defer func() {
		if r := recover(); r != nil {
			ctrl.metrics.panics.Inc()
			klog.FromContext(ctx).Error(fmt.Errorf("panic: %v", r), "Panicked while working on an item", "item", key, "stack", string(debug.Stack()))
			q.fail(key, ctrl.retryMax)
		}
	}()
	// A queue that is shut down still hands out what it holds.
	if ctx.Err() != nil || ctrl.draining() || !q.take(key) {
		return
	}
	err := sync(ctx, key)
	var wait *waitError
	switch {
	case err == nil:
		q.forget(key)
	case errors.As(err, &wait):
		q.later(key, wait.For)
	default:
		var least time.Duration
		if infeasible(err) {
			least = ctrl.retryMax
		}
		pause := q.fail(key, least)
		klog.FromContext(ctx).Error(err, "Failed, trying again", "item", key, "failures", q.failed(key), "after", pause.Round(time.Millisecond))
	}
}

// waitError is no failure: the item is looked at again after a while, if nothing
// wakes it before.
type waitError struct {
	Reason string
	For    time.Duration
}

// Error implements error.
func (e *waitError) Error() string { return e.Reason }

// infeasible reports whether an error will be met again until an object changes.
func infeasible(err error) bool {
	var i Infeasible
	return errors.As(err, &i) && i.Infeasible()
}

// syncClaim provisions for a claim, by its UID. A failure is remembered for as long
// as its volume may exist.
func (ctrl *ProvisionController) syncClaim(ctx context.Context, key string) error {
	why := "it panicked: see the log" // unless it returns
	defer func() {
		if why != "" {
			ctrl.ops.failed(types.UID(key), why, ctrl.clock.Now())
		}
	}()
	err := ctrl.workOnClaim(ctx, key)
	why = ""
	if err != nil {
		why = err.Error()
	}
	return err
}

func (ctrl *ProvisionController) workOnClaim(ctx context.Context, key string) error {
	uid := types.UID(key)
	claim, err := ctrl.claimByUID(uid)
	if err != nil {
		return err
	}
	op, begun := ctrl.ops.get(uid)
	if begun {
		return ctrl.goOn(ctx, op, claim)
	}
	if claim == nil {
		ctrl.forgetClaim(uid)
		return nil
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("claim", klog.KObj(claim)))
	class, err := ctrl.wanted(ctx, claim)
	if class == nil || err != nil {
		return err
	}
	if there, err := ctrl.provisioned(ctx, claim); there || err != nil {
		return err
	}
	if err := ctrl.canProvision(ctx, claim); err != nil {
		return ctrl.failed(claim, err)
	}
	return ctrl.provision(ctx, claim, class, false)
}

// wanted returns the class of a claim that is to be provisioned now; nil for any
// other.
func (ctrl *ProvisionController) wanted(ctx context.Context, claim *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	if !ctrl.rules.addressed(claim) || claim.DeletionTimestamp != nil {
		return nil, nil
	}
	if mine, err := ctrl.mine(ctx, claim); err != nil || !mine {
		return nil, err
	}
	if times, failed := ctrl.ops.failedTimes(claim.UID); failed && !ctrl.retryForever && times >= ctrl.threshold {
		klog.FromContext(ctx).V(2).Info("A claim has failed too often and is left alone", "failures", times)
		return nil, nil
	}
	class, err := ctrl.class(claim)
	switch {
	case apierrors.IsNotFound(err) && ctrl.rules.before(5):
		return nil, nil
	case apierrors.IsNotFound(err):
		return nil, ctrl.failed(claim, fmt.Errorf("StorageClass %q does not exist: create it, or name another in a new claim", className(claim)))
	case err != nil:
		return nil, err
	}
	if !ctrl.rules.mayProvision(claim, class) {
		return nil, nil
	}
	if rest := ctrl.slow.waits(claim, class, ctrl.clock.Now()); rest > 0 {
		return nil, &waitError{Reason: "the claim was refused, and neither it nor its class has changed", For: rest}
	}
	return class, nil
}

// mine reports whether a claim is not left to others. A claim that may become
// ours waits in the queue, not in a worker.
func (ctrl *ProvisionController) mine(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	switch q := ctrl.provisioner.(type) {
	case Sharer:
		mine, again, err := q.Share(ctx, claim)
		if err == nil && !mine && again > 0 {
			err = &waitError{Reason: "the claim may become ours", For: again}
		}
		if apierrors.IsForbidden(err) && ctrl.told.news(claim.UID, err.Error()) {
			// It lasts until somebody grants it, and nobody else may take the claim.
			ctrl.recorder.Event(claim, v1.EventTypeWarning, ReasonProvisioningFailed, err.Error())
		}
		return mine, err
	case Qualifier:
		return q.ShouldProvision(ctx, claim), nil
	default:
		return true, nil
	}
}

// owns is mine without taking the claim from others.
func (ctrl *ProvisionController) owns(ctx context.Context, claim *v1.PersistentVolumeClaim) bool {
	switch q := ctrl.provisioner.(type) {
	case Sharer:
		return q.Owns(claim)
	case Qualifier:
		return q.ShouldProvision(ctx, claim)
	default:
		return true
	}
}

// class reads the class of a claim.
func (ctrl *ProvisionController) class(claim *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	return ctrl.classes.Get(className(claim))
}

// claimByUID finds a claim; nil if there is none (any more).
func (ctrl *ProvisionController) claimByUID(uid types.UID) (*v1.PersistentVolumeClaim, error) {
	found, err := ctrl.claimInformer.GetIndexer().ByIndex(byUID, string(uid))
	if err != nil {
		return nil, fmt.Errorf("looking for the claim %s: %w", uid, err)
	}
	for _, obj := range found {
		if claim, ok := obj.(*v1.PersistentVolumeClaim); ok {
			return claim, nil
		}
	}
	return nil, nil
}

// liveClaim reads a claim from the server; nil if it is gone, or another one has
// its name.
func (ctrl *ProvisionController) liveClaim(ctx context.Context, namespace, name string, uid types.UID) (*v1.PersistentVolumeClaim, error) {
	ctx, cancel := context.WithTimeout(ctx, ctrl.timeout)
	defer cancel()
	claim, err := ctrl.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading claim %s/%s: %w", namespace, name, err)
	case claim.UID != uid:
		return nil, nil
	}
	return claim, nil
}

// onClaim takes in a claim that was added or has changed.
func (ctrl *ProvisionController) onClaim(was, is *v1.PersistentVolumeClaim) {
	if is.Spec.VolumeName != "" {
		ctrl.ops.unsave(is.UID)
	}
	_, begun := ctrl.ops.get(is.UID)
	switch {
	case !begun && !ctrl.rules.addressed(is):
		return
	case was == nil || changed(was, is):
		ctrl.claims.renew(string(is.UID))
	default:
		ctrl.claims.add(string(is.UID))
	}
}

// changed reports whether a claim says something new to us.
func changed(was, is *v1.PersistentVolumeClaim) bool {
	return !equality.Semantic.DeepEqual(was.Spec, is.Spec) || !equality.Semantic.DeepEqual(was.Annotations, is.Annotations) ||
		(was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil)
}

// onClaimGone forgets a claim, unless its volume may exist. The deletion of its
// PersistentVolume may have waited for it.
func (ctrl *ProvisionController) onClaimGone(claim *v1.PersistentVolumeClaim) {
	ctrl.wakePV(ctrl.volumeName(claim))
	if name := claim.Spec.VolumeName; name != "" {
		ctrl.wakePV(name)
	}
	ctrl.forgetClaim(claim.UID)
	if _, begun := ctrl.ops.get(claim.UID); begun {
		ctrl.claims.add(string(claim.UID))
		return
	}
	ctrl.claims.forget(string(claim.UID))
}

// forgetClaim drops what is remembered of a claim that has gone, but for its
// volume.
func (ctrl *ProvisionController) forgetClaim(uid types.UID) {
	ctrl.ops.unsave(uid)
	ctrl.ops.forget(uid)
	ctrl.slow.forget(uid)
	ctrl.told.forget(uid)
}
