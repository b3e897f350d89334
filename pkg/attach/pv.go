package attach

import (
	"context"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"
)

var getOptions = metav1.GetOptions{}

// annMigratedTo is Kubernetes' word that an in-tree plugin's volume is the CSI
// driver's business.
const annMigratedTo = "pv.kubernetes.io/migrated-to"

// leaving reports whether our finalizer is to come off: the PersistentVolume is
// being deleted, or its in-tree plugin has taken it back, by which nobody would
// be left to do it.
func (c *Controller) leaving(pv *v1.PersistentVolume) bool {
	if !hasFinalizer(pv.Finalizers, c.finalizer) {
		return false
	}
	takenBack := pv.Annotations[annMigratedTo] != c.cfg.DriverName && csitranslation.New().IsPVMigratable(pv)
	return pv.DeletionTimestamp != nil || takenBack
}

// workPV takes our finalizer off a PersistentVolume that is leaving, once no
// VolumeAttachment names it. The deletion of the last one brings it back.
func (c *Controller) workPV(ctx context.Context, it item) {
	pv, err := c.pvs.Get(it.pv)
	if apierrors.IsNotFound(err) || err == nil && (!c.leaving(pv) || len(c.ledger.usersOf(it.pv)) > 0) {
		c.lanes.forget(it)
		return
	}
	if err == nil {
		err = c.unprotectPV(ctx, pv)
	}
	if err == nil || apierrors.IsNotFound(err) {
		c.lanes.forget(it)
		return
	}
	if !apierrors.IsConflict(err) && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Failed to remove the finalizer of a PersistentVolume", "persistentVolume", klog.KObj(pv))
	}
	c.lanes.fail(c.lanes.detach, it, c.cfg.RetryIntervalMax)
}

// unprotectPV patches the cached version and, where that has changed, the live
// one.
func (c *Controller) unprotectPV(ctx context.Context, pv *v1.PersistentVolume) error {
	err := c.patchPVFinalizers(ctx, pv, without(pv.Finalizers, c.finalizer))
	if !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	live, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, pv.Name, getOptions)
	if err != nil || live.UID != pv.UID || !c.leaving(live) {
		return err
	}
	return c.patchPVFinalizers(ctx, live, without(live.Finalizers, c.finalizer))
}
