package attach

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
)

// workTrivial is for a driver that has nothing to publish: the VolumeAttachment
// is attached because it exists, and a finalizer of an older setup comes off.
func (c *Controller) workTrivial(ctx context.Context, it item, va *storagev1.VolumeAttachment) {
	err := c.trivial(ctx, va)
	switch {
	case err == nil:
		c.lanes.forget(it)
	case isNotFoundVA(err):
		c.lanes.forget(it)
		c.ledger.vanished(va.UID)
	default:
		if apierrors.IsConflict(err) {
			_, _ = c.liveVA(ctx, va.Name, va.UID) // the next attempt tells
		} else {
			klog.FromContext(ctx).Error(err, "Failed to mark a VolumeAttachment", "volumeAttachment", klog.KObj(va))
		}
		c.lanes.fail(c.lanes.attach, it, c.cfg.RetryIntervalMax)
	}
}

func (c *Controller) trivial(ctx context.Context, va *storagev1.VolumeAttachment) error {
	switch {
	case va.DeletionTimestamp == nil && !va.Status.Attached:
		if err := c.commit(ctx, va, nil); err != nil {
			return fmt.Errorf("marking it attached: %w", err)
		}
	case va.DeletionTimestamp != nil && hasFinalizer(va.Finalizers, c.finalizer):
		_, err := c.patchVA(ctx, va, true, object{"finalizers": without(va.Finalizers, c.finalizer)}, nil)
		if err != nil {
			return fmt.Errorf("removing finalizer: %w", err)
		}
	}
	return nil
}
