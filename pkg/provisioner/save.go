package provisioner

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// save writes the PersistentVolume of a volume that was made. It is tried until it
// succeeds: a volume is never deleted because its PersistentVolume cannot be
// saved, while the claim waits for it.
func (ctrl *ProvisionController) save(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	gone, err := ctrl.abandoned(ctx, claim, pv)
	if err != nil {
		return fmt.Errorf("%w; volume %s exists, and saving its PersistentVolume is tried again", err, pv.Name)
	}
	pv = pv.DeepCopy()
	if op, _ := ctrl.ops.get(claim.UID); gone && !op.perhapsSaved {
		// Nobody has used the volume: there is nothing to retain.
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
	}
	if ctrl.addFinalizer && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete && !hasFinalizer(pv) {
		pv.Finalizers = append(pv.Finalizers, Finalizer)
	}
	bounded, cancel := context.WithTimeout(ctx, ctrl.timeout)
	defer cancel()
	_, err = ctrl.client.CoreV1().PersistentVolumes().Create(bounded, pv, metav1.CreateOptions{})
	switch {
	case err == nil:
		ctrl.isSaved(ctx, claim, pv)
		return nil
	case apierrors.IsAlreadyExists(err):
		return ctrl.saveAgain(ctx, claim, pv)
	case gone && rejected(err):
		return ctrl.rejectedAtLast(ctx, claim, pv, err)
	default:
		if !rejected(err) {
			ctrl.ops.perhapsSaved(claim.UID)
		}
		err = fmt.Errorf("saving PersistentVolume %s: %w; the volume exists, and saving it is tried again", pv.Name, allow(err, "create of persistentvolumes, or what the policy forbids"))
		ctrl.recorder.Eventf(claim, v1.EventTypeWarning, ReasonProvisioningFailed, "Error creating provisioned PV object for claim %s/%s: %v", claim.Namespace, claim.Name, err)
		return err
	}
}

// rejected reports whether the server will not have a PersistentVolume as it is.
func rejected(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// abandoned reports whether the claim of a volume is gone, or has another volume
// by now. What the informer does not have is looked for at the server, and so is
// every claim whose volume would outlive it.
func (ctrl *ProvisionController) abandoned(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (bool, error) {
	known, err := ctrl.claimByUID(claim.UID)
	if err != nil {
		return false, err
	}
	if known == nil || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
		if known, err = ctrl.liveClaim(ctx, claim.Namespace, claim.Name, claim.UID); err != nil {
			return false, err
		}
	}
	return known == nil || boundElsewhere(known, pv.Name), nil
}

// noteSaved ends the operation of a claim. It is remembered until the claim is
// bound or gone, which no event may tell any more.
func (ctrl *ProvisionController) noteSaved(uid types.UID, pv string) {
	ctrl.ops.save(uid, pv)
	if claim, err := ctrl.claimByUID(uid); err == nil && (claim == nil || claim.Spec.VolumeName != "") {
		ctrl.ops.unsave(uid)
	}
}

// isSaved ends the operation.
func (ctrl *ProvisionController) isSaved(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
	ctrl.noteSaved(claim.UID, pv.Name)
	ctrl.settle(claim.UID)
	ctrl.recorder.Eventf(claim, v1.EventTypeNormal, ReasonProvisioned, "Successfully provisioned volume %s", pv.Name)
	klog.FromContext(ctx).Info("Provisioned", "persistentVolume", pv.Name)
	ctrl.onChange(pv)
}

// saveAgain answers AlreadyExists: the PersistentVolume is ours and an answer was
// lost, or it is somebody else's.
func (ctrl *ProvisionController) saveAgain(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	there, err := ctrl.livePV(ctx, pv.Name)
	switch {
	case err != nil:
		return err
	case there == nil:
		return fmt.Errorf("PersistentVolume %s existed a moment ago and does not any more", pv.Name)
	default:
		return ctrl.taken(ctx, claim, pv, there)
	}
}

// rejectedAtLast answers a rejection when the claim has gone. A server rejects
// before it looks at what is there: an earlier attempt may have been heard, its
// answer lost, and the claim may have come and gone with the volume since.
func (ctrl *ProvisionController) rejectedAtLast(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, why error) error {
	there, err := ctrl.livePV(ctx, pv.Name)
	switch {
	case err != nil:
		return fmt.Errorf("%w; volume %s is not deleted: %w", why, pv.Name, err)
	case there == nil && pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete:
		return fmt.Errorf("saving PersistentVolume %s: %w; its volume may have been used and is to be retained: saving it is tried again", pv.Name, why)
	case there == nil:
		return ctrl.discard(ctx, claim, pv, why)
	default:
		return ctrl.taken(ctx, claim, pv, there)
	}
}

// taken ends the operation of a claim whose PersistentVolume's name is taken.
func (ctrl *ProvisionController) taken(ctx context.Context, claim *v1.PersistentVolumeClaim, pv, there *v1.PersistentVolume) error {
	switch {
	case sameVolume(there, pv) && claimedBy(there, claim):
		ctrl.isSaved(ctx, claim, pv)
		return nil
	case sameVolume(there, pv):
		// The volume is accounted for, though not for this claim.
		ctrl.ops.end(claim.UID)
		ctrl.settle(claim.UID)
		return ctrl.failed(claim, fmt.Errorf("PersistentVolume %s exists already and names the same volume for another claim", pv.Name))
	default:
		return ctrl.discard(ctx, claim, pv, fmt.Errorf("PersistentVolume %s exists already with another volume", pv.Name))
	}
}

// sameVolume reports whether two PersistentVolumes stand for one volume.
func sameVolume(a, b *v1.PersistentVolume) bool {
	if a.Spec.CSI != nil && b.Spec.CSI != nil {
		return a.Spec.CSI.Driver == b.Spec.CSI.Driver && a.Spec.CSI.VolumeHandle == b.Spec.CSI.VolumeHandle
	}
	return equality.Semantic.DeepEqual(a.Spec.PersistentVolumeSource, b.Spec.PersistentVolumeSource)
}

// discard deletes a volume that no PersistentVolume will ever stand for.
func (ctrl *ProvisionController) discard(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, why error) error {
	others, err := ctrl.withVolumeOf(pv)
	if err != nil {
		return err
	}
	if len(others) > 0 {
		ctrl.ops.end(claim.UID)
		ctrl.settle(claim.UID)
		return ctrl.failed(claim, fmt.Errorf("%w; the volume that was made is that of PersistentVolume %s, and stays", why, others[0].Name))
	}
	err = ctrl.deleteAsset(ctx, pv)
	var ignored *IgnoredError
	if err != nil && !errors.As(err, &ignored) {
		err = fmt.Errorf("%w; deleting the volume that was made: %w; it is tried again", why, err)
		ctrl.recorder.Eventf(claim, v1.EventTypeWarning, ReasonCleanupFailed, "Error cleaning provisioned volume for claim %s/%s: %v", claim.Namespace, claim.Name, err)
		return err
	}
	ctrl.ops.end(claim.UID)
	ctrl.settle(claim.UID)
	ctrl.onChange(pv)
	return ctrl.failed(claim, fmt.Errorf("%w; the volume that was made is deleted again", why))
}

// withVolumeOf lists the PersistentVolumes that stand for the same CSI volume.
func (ctrl *ProvisionController) withVolumeOf(pv *v1.PersistentVolume) (others []*v1.PersistentVolume, err error) {
	keys, err := volumeHandle(pv)
	if err != nil || len(keys) == 0 {
		return nil, err
	}
	found, err := ctrl.volumeInformer.GetIndexer().ByIndex(byHandle, keys[0])
	if err != nil {
		return nil, fmt.Errorf("looking for PersistentVolumes of the volume: %w", err)
	}
	for _, obj := range found {
		if other, ok := obj.(*v1.PersistentVolume); ok {
			others = append(others, other)
		}
	}
	return others, nil
}
