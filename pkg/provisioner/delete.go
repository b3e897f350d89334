package provisioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// lookAgain is how long a deletion waits for an event that may have been missed.
const lookAgain = 15 * time.Second

// deleteVolume deletes the volume of a PersistentVolume, and then the
// PersistentVolume. What it goes by is read live: an informer that lags must
// not cost data.
func (ctrl *ProvisionController) deleteVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	defer ctrl.forgetIfGone(pv)
	deleted, told := ctrl.ops.wasDeleted(pv.UID)
	if told && pv.DeletionTimestamp != nil && hasFinalizer(pv) {
		// Somebody put it on after we had looked; or else the informer lags.
		return ctrl.takeFinalizer(ctx, pv)
	}
	if told {
		return nil // the informer lags
	}
	if !deleted {
		live, err := ctrl.livePV(ctx, pv.Name)
		if err != nil {
			return err
		}
		if live == nil || live.UID != pv.UID || !ctrl.rules.shouldDelete(live) {
			return nil
		}
		pv = live
		if err := ctrl.claimIsGone(ctx, pv); err != nil {
			return err
		}
		if done, err := ctrl.deleteOnce(ctx, pv); !done || err != nil {
			return err
		}
	}
	return ctrl.deletePV(ctx, pv)
}

// forgetIfGone drops what is remembered of a PersistentVolume that went while it
// was worked on: no event of it will follow.
func (ctrl *ProvisionController) forgetIfGone(pv *v1.PersistentVolume) {
	if known, err := ctrl.volumes.Get(pv.Name); err != nil || known.UID != pv.UID {
		ctrl.ops.gone(pv.UID)
		ctrl.told.forget(pv.UID)
	}
}

// claimIsGone reads the claim that a Released PersistentVolume was for. One that is
// still there is about to be bound: kube-controller-manager had not seen it yet.
func (ctrl *ProvisionController) claimIsGone(ctx context.Context, pv *v1.PersistentVolume) error {
	claim, err := ctrl.claimOf(ctx, pv)
	if err != nil || claim == nil {
		return err
	}
	return ctrl.refuse(pv, fmt.Sprintf("The volume is not deleted: PersistentVolume %s is Released, yet its claim %s/%s exists", pv.Name, claim.Namespace, claim.Name))
}

// claimOf reads the claim of a PersistentVolume; nil if it is gone, or has another
// one by now.
func (ctrl *ProvisionController) claimOf(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.UID == "" {
		return nil, nil
	}
	claim, err := ctrl.liveClaim(ctx, ref.Namespace, ref.Name, ref.UID)
	if err != nil || claim == nil || boundElsewhere(claim, pv.Name) {
		return nil, err
	}
	return claim, nil
}

// refuse tells once why a volume is not deleted, and has it looked at again.
func (ctrl *ProvisionController) refuse(pv *v1.PersistentVolume, message string) error {
	if ctrl.told.news(pv.UID, message) {
		ctrl.recorder.Event(pv, v1.EventTypeWarning, ReasonVolumeDeleteRefused, message)
	}
	return &waitError{Reason: message, For: lookAgain}
}

// deleteIt deletes the volume; done is false where it was left alone.
func (ctrl *ProvisionController) deleteIt(ctx context.Context, pv *v1.PersistentVolume) (done bool, err error) {
	began := ctrl.clock.Now()
	by, err := ctrl.attached(pv)
	if err == nil && by != "" {
		err = &InUseError{Reason: by}
	}
	if err == nil {
		err = ctrl.deleteAsset(ctx, pv)
	}
	var ignored *IgnoredError
	var inUse *InUseError
	switch {
	case err == nil:
		ctrl.ops.setDeleted(pv.UID, false)
		ctrl.metrics.deleted(pv, ctrl.clock.Since(began))
		klog.FromContext(ctx).Info("Deleted the volume")
		ctrl.onChange(pv)
		return true, nil
	case errors.As(err, &ignored):
		klog.FromContext(ctx).V(2).Info("The volume is not deleted here", "reason", ignored.Reason)
		return false, nil
	case errors.As(err, &inUse):
		if ctrl.told.news(pv.UID, inUse.Reason) {
			ctrl.recorder.Event(pv, v1.EventTypeNormal, ReasonVolumeDelete, "The volume is deleted once it is detached: "+inUse.Reason)
		}
		return false, &waitError{Reason: inUse.Error(), For: lookAgain}
	default:
		ctrl.metrics.deleteFailed(pv)
		ctrl.recorder.Event(pv, v1.EventTypeWarning, ReasonVolumeFailedDelete, err.Error())
		return false, fmt.Errorf("deleting the volume of PersistentVolume %s: %w", pv.Name, err)
	}
}

// deleteAsset calls the provisioner in the best way that it has.
func (ctrl *ProvisionController) deleteAsset(ctx context.Context, pv *v1.PersistentVolume) error {
	if d, ok := ctrl.provisioner.(ContextDeleter); ok {
		return d.DeleteExt(ctx, pv)
	}
	return ctrl.provisioner.Delete(pv)
}

// deletePV takes our finalizer off and deletes the object. In this order: once it
// is Terminating, others take their finalizers off at the same time as we.
func (ctrl *ProvisionController) deletePV(ctx context.Context, pv *v1.PersistentVolume) error {
	if hasFinalizer(pv) {
		if err := ctrl.takeFinalizer(ctx, pv); err != nil {
			return err
		}
	}
	if pv.DeletionTimestamp != nil {
		ctrl.ops.setDeleted(pv.UID, true)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, ctrl.timeout)
	defer cancel()
	err := ctrl.client.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, *metav1.NewPreconditionDeleteOptions(string(pv.UID)))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		err = fmt.Errorf("deleting PersistentVolume %s, whose volume is deleted: %w", pv.Name, allow(err, "delete of persistentvolumes"))
		ctrl.recorder.Event(pv, v1.EventTypeWarning, ReasonVolumeFailedDelete, err.Error())
		return err
	}
	ctrl.ops.setDeleted(pv.UID, true)
	return nil
}
