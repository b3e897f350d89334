package provisioner

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// deleteOnce deletes the volume of a PersistentVolume, unless another one accounts
// for it: then it stays, and the event says so. Where several stand for one volume
// and it is to go with each of them, the first deletes it and the others only
// follow. done is false where the volume was left alone.
func (ctrl *ProvisionController) deleteOnce(ctx context.Context, pv *v1.PersistentVolume) (done bool, err error) {
	if pv.Spec.CSI == nil {
		return ctrl.deleteIt(ctx, pv)
	}
	name := csiName(pv.Spec.CSI)
	if !ctrl.ops.lockVolume(name, pv.Name) {
		return false, &waitError{Reason: "the volume is being deleted for another PersistentVolume", For: lookAgain}
	}
	defer func() {
		for _, waiting := range ctrl.ops.unlockVolume(name) {
			// Not renew: two that both fail must not end each other's backoff.
			ctrl.deletions.add(waiting)
		}
	}()
	if deleted, _ := ctrl.ops.wasDeleted(pv.UID); deleted {
		return true, nil
	}
	twins, err := ctrl.twinsOf(pv)
	if err != nil {
		return false, err
	}
	for _, twin := range twins {
		if err := ctrl.twinGoesToo(ctx, pv, twin); err != nil {
			return false, err
		}
	}
	if done, err = ctrl.deleteIt(ctx, pv); !done {
		return false, err
	}
	for _, twin := range twins {
		ctrl.ops.setDeleted(twin.UID, false)
		ctrl.forgetIfGone(twin)
		ctrl.deletions.add(twin.Name)
	}
	return true, nil
}

// twinsOf lists the other PersistentVolumes of a CSI volume.
//
// They are those that the informer knows, since a list at the server for each
// deletion would be too dear. It lags, yet never behind what we go by: one watch
// tells of all PersistentVolumes in the order of their changes, and so whatever was
// made before this one became Released, or got the policy Delete, is known once
// that is. Not known may be one that was made since, and one of an in-tree plugin,
// which does not name the handle.
func (ctrl *ProvisionController) twinsOf(pv *v1.PersistentVolume) (twins []*v1.PersistentVolume, err error) {
	all, err := ctrl.withVolumeOf(pv)
	for _, other := range all {
		if other.UID != pv.UID {
			twins = append(twins, other)
		}
	}
	return twins, err
}

// twinGoesToo is nil if another PersistentVolume of a volume does not speak for it:
// it is to be deleted by us in the same way. Any other does, in whatever phase: one
// that is Available, Failed or retained too, and one whose claim is there. What
// the informer says against the deletion suffices; what it says for it is read
// live, for it may lag.
func (ctrl *ProvisionController) twinGoesToo(ctx context.Context, pv, twin *v1.PersistentVolume) error {
	if !ctrl.goes(ctx, twin) {
		return ctrl.keptBy(pv, twin, "is "+stateOf(twin))
	}
	live, err := ctrl.livePV(ctx, twin.Name)
	if err != nil {
		return err
	}
	if live == nil || live.UID != twin.UID {
		return nil
	}
	if !ctrl.goes(ctx, live) {
		return ctrl.keptBy(pv, live, "is "+stateOf(live))
	}
	claim, err := ctrl.claimOf(ctx, live)
	if err != nil {
		return err
	}
	if claim != nil {
		return ctrl.keptBy(pv, live, fmt.Sprintf("has the claim %s/%s", claim.Namespace, claim.Name))
	}
	return nil
}

// goes reports whether a PersistentVolume says that its volume is ours to delete.
func (ctrl *ProvisionController) goes(ctx context.Context, pv *v1.PersistentVolume) bool {
	guard, ok := ctrl.provisioner.(DeletionGuard)
	return ctrl.rules.shouldDelete(pv) && (!ok || guard.ShouldDelete(ctx, pv))
}

func stateOf(pv *v1.PersistentVolume) string {
	return fmt.Sprintf("%s with the policy %s", pv.Status.Phase, pv.Spec.PersistentVolumeReclaimPolicy)
}

// keptBy refuses to delete a volume that another PersistentVolume speaks for.
func (ctrl *ProvisionController) keptBy(pv, twin *v1.PersistentVolume, why string) error {
	return ctrl.refuse(pv, fmt.Sprintf("The volume is not deleted: PersistentVolume %s stands for it too and %s. To give up PersistentVolume %s alone, set its persistentVolumeReclaimPolicy to Retain and delete it", twin.Name, why, pv.Name))
}

// wakeTwins looks again at what waits for another PersistentVolume of its volume.
func (ctrl *ProvisionController) wakeTwins(pv *v1.PersistentVolume) {
	if pv.Spec.CSI != nil {
		ctrl.wakeVolume(csiName(pv.Spec.CSI))
	}
}
