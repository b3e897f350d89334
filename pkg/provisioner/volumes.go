package provisioner

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// syncVolume deletes the volume of a PersistentVolume, or looks after its
// finalizer.
func (ctrl *ProvisionController) syncVolume(ctx context.Context, name string) error {
	pv, err := ctrl.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("persistentVolume", name))
	if !ctrl.deletes(ctx, pv) {
		return nil
	}
	if ctrl.rules.shouldDelete(pv) {
		return ctrl.deleteVolume(ctx, pv)
	}
	switch ctrl.rules.finalizerFor(pv) {
	case putFinalizer:
		return ctrl.putFinalizer(ctx, pv)
	case takeFinalizer:
		return ctrl.takeFinalizer(ctx, pv)
	}
	return nil
}

// deletes reports whether a PersistentVolume is not left to others.
func (ctrl *ProvisionController) deletes(ctx context.Context, pv *v1.PersistentVolume) bool {
	guard, ok := ctrl.provisioner.(DeletionGuard)
	return !ok || guard.ShouldDelete(ctx, pv)
}

// onVolume takes in a PersistentVolume that was added or has changed.
func (ctrl *ProvisionController) onVolume(was, is *v1.PersistentVolume) {
	if was != nil && pvChanged(was, is) {
		ctrl.wakeTwins(is)
	}
	if !ctrl.rules.shouldDelete(is) && ctrl.rules.finalizerFor(is) == keepFinalizer {
		return
	}
	if was == nil || pvChanged(was, is) {
		ctrl.deletions.renew(is.Name)
		return
	}
	ctrl.deletions.add(is.Name)
}

// pvChanged reports whether a PersistentVolume says something new to us. Changes
// of finalizers alone do not: ours are among them.
func pvChanged(was, is *v1.PersistentVolume) bool {
	return was.Status.Phase != is.Status.Phase || !equality.Semantic.DeepEqual(was.Spec, is.Spec) ||
		!equality.Semantic.DeepEqual(was.Annotations, is.Annotations) || (was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil)
}

// onVolumeGone wakes the claim that waited for the name, or whose volume was
// taken from it.
func (ctrl *ProvisionController) onVolumeGone(pv *v1.PersistentVolume) {
	ctrl.ops.gone(pv.UID)
	ctrl.told.forget(pv.UID)
	ctrl.deletions.forget(pv.Name)
	ctrl.wakeTwins(pv)
	if ref := pv.Spec.ClaimRef; ref != nil && ref.UID != "" {
		ctrl.wakeClaim(ref.UID)
	}
}

// wakeClaim queues a claim that is ours and not bound.
func (ctrl *ProvisionController) wakeClaim(uid types.UID) {
	claim, err := ctrl.claimByUID(uid)
	if err == nil && claim != nil && ctrl.rules.addressed(claim) {
		ctrl.claims.renew(string(uid))
	}
}

// onClass wakes the claims that wait for a class.
func (ctrl *ProvisionController) onClass(name string) {
	for _, obj := range ctrl.claimInformer.GetStore().List() {
		claim, ok := obj.(*v1.PersistentVolumeClaim)
		if ok && className(claim) == name && ctrl.rules.addressed(claim) {
			ctrl.claims.renew(string(claim.UID))
		}
	}
}
