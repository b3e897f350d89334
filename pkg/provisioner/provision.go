package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// slowProvision is how long a volume may take before an event says that it is
// being made: a fast one has the event of its success alone.
const slowProvision = time.Second

// provisioned reports whether a claim has its PersistentVolume already. Informers
// may lag: what we saved ourselves counts until the claim is seen bound.
func (ctrl *ProvisionController) provisioned(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	if pv, err := ctrl.volumes.Get(ctrl.volumeName(claim)); err == nil {
		return true, ctrl.occupied(claim, pv)
	}
	saved := ctrl.ops.savedAs(claim.UID)
	if saved == "" {
		return false, nil
	}
	live, err := ctrl.liveClaim(ctx, claim.Namespace, claim.Name, claim.UID)
	if err != nil || live == nil || live.Spec.VolumeName != "" {
		return true, err
	}
	pv, err := ctrl.livePV(ctx, saved)
	if err != nil || pv != nil {
		return true, err
	}
	ctrl.ops.unsave(claim.UID)
	return false, nil
}

// occupied tells of a PersistentVolume that has the name of the claim's and is
// not the claim's.
func (ctrl *ProvisionController) occupied(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) error {
	if claimedBy(pv, claim) {
		return nil
	}
	return ctrl.failed(claim, fmt.Errorf("PersistentVolume %s exists already and is not this claim's: nothing is provisioned until it is removed", pv.Name))
}

func claimedBy(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
}

// livePV reads a PersistentVolume from the server; nil if there is none.
func (ctrl *ProvisionController) livePV(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	ctx, cancel := context.WithTimeout(ctx, ctrl.timeout)
	defer cancel()
	pv, err := ctrl.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolume %s: %w", name, err)
	}
	return pv, nil
}

// goOn takes a claim whose volume may exist as far as it goes. claim is nil where
// it has gone.
func (ctrl *ProvisionController) goOn(ctx context.Context, op operation, claim *v1.PersistentVolumeClaim) error {
	last := op.claim
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("claim", klog.KObj(last)))
	if op.found {
		// The earlier process may have come further than it could note, and knew
		// claims that the informer does not have yet.
		if claim == nil {
			var err error
			if claim, err = ctrl.liveClaim(ctx, last.Namespace, last.Name, last.UID); err != nil {
				return err
			}
		}
		if there, err := ctrl.alreadySaved(ctx, last, claim); there || err != nil {
			return err
		}
	}
	abandoned := claim == nil || boundElsewhere(claim, ctrl.nameOf(last))
	if claim == nil {
		claim = last
	}
	if op.pv != nil {
		return ctrl.save(ctx, claim, op.pv)
	}
	class, err := ctrl.class(claim)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err != nil {
		class = nil
	}
	return ctrl.provision(ctx, claim, class, abandoned)
}

// alreadySaved ends what an earlier process began and also finished: the
// PersistentVolume is there, or was, since the claim was bound to it.
//
// Which volume was made is not known, since it was written down before. One that
// has the name which the request has, for the claim, and that we provisioned, is of
// that volume: a driver has one volume of a name. For any other the request is made
// again, and saving tells whether the answer is the same volume.
func (ctrl *ProvisionController) alreadySaved(ctx context.Context, last, claim *v1.PersistentVolumeClaim) (bool, error) {
	name := ctrl.nameOf(last)
	pv, err := ctrl.livePV(ctx, name)
	if err != nil {
		return false, err
	}
	if pv == nil && (claim == nil || claim.Spec.VolumeName != name) || pv != nil && !ctrl.madeFor(pv, last) {
		return false, nil
	}
	ctrl.noteSaved(last.UID, name)
	ctrl.settle(last.UID)
	return true, nil
}

// madeFor reports whether a PersistentVolume is what we provisioned for a claim.
func (ctrl *ProvisionController) madeFor(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return claimedBy(pv, claim) && ctrl.rules.ours(pv.Annotations[AnnotationProvisionedBy]) &&
		(pv.Spec.CSI == nil || ctrl.rules.ours(pv.Spec.CSI.Driver))
}

// nameOf is how the PersistentVolume of a claim is called: as it was begun, or else
// as it would be now.
func (ctrl *ProvisionController) nameOf(claim *v1.PersistentVolumeClaim) string {
	if durable, ok := ctrl.provisioner.(DurableProvisioner); ok {
		if name := durable.BegunAs(claim.UID); name != "" {
			return name
		}
	}
	return ctrl.volumeName(claim)
}

// boundElsewhere reports whether a claim has another PersistentVolume than that of
// the name.
func boundElsewhere(claim *v1.PersistentVolumeClaim, name string) bool {
	return claim.Spec.VolumeName != "" && claim.Spec.VolumeName != name
}

// provision makes the volume of a claim. class is nil only where the volume may
// exist and the class has gone. Where a panic ends it, the volume may have been
// made, and no claim need be there any more to try again for.
func (ctrl *ProvisionController) provision(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, abandoned bool) error {
	returned := false
	defer func() {
		if !returned {
			ctrl.ops.find(claim.UID, operation{claim: claim, since: ctrl.clock.Now()})
		}
	}()
	err := ctrl.tryProvision(ctx, claim, class, abandoned)
	returned = true
	return err
}

func (ctrl *ProvisionController) tryProvision(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, abandoned bool) error {
	options := VolumeOptions{
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		PVName:                        ctrl.nameOf(claim), PVC: claim, StorageClass: class, SelectedNode: selectedNode(claim), Abandoned: abandoned,
	}
	if class != nil {
		options.Parameters = class.Parameters
		if class.ReclaimPolicy != nil {
			options.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
		}
	}
	slow := time.AfterFunc(slowProvision, func() {
		ctrl.recorder.Eventf(claim, v1.EventTypeNormal, ReasonProvisioning, "External provisioner is provisioning volume for claim %q", claim.Namespace+"/"+claim.Name)
	})
	defer slow.Stop()
	began := ctrl.clock.Now()
	pv, state, err := ctrl.ask(ctx, options)
	slow.Stop()
	if err == nil && pv == nil {
		state, err = ProvisioningInBackground, errors.New("the provisioner returned neither a PersistentVolume nor an error")
	}
	if err != nil {
		return ctrl.notProvisioned(ctx, claim, class, state, err)
	}
	ctrl.metrics.provisioned(claim, ctrl.clock.Since(began))
	pv = ctrl.complete(pv, claim, class, options)
	ctrl.ops.begin(claim.UID, operation{claim: claim, pv: pv, since: ctrl.clock.Now()})
	return ctrl.save(ctx, claim, pv)
}

// ask calls the provisioner in the best way that it has.
func (ctrl *ProvisionController) ask(ctx context.Context, options VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
	if stateful, ok := ctrl.provisioner.(StatefulProvisioner); ok {
		return stateful.ProvisionExt(ctx, options)
	}
	pv, err := ctrl.provisioner.Provision(options)
	return pv, ProvisioningFinished, err
}

// canProvision checks what is the same for all provisioners.
func (ctrl *ProvisionController) canProvision(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeMode == nil || *claim.Spec.VolumeMode != v1.PersistentVolumeBlock {
		return nil
	}
	if b, ok := ctrl.provisioner.(BlockProvisioner); ok && b.SupportsBlock(ctx) {
		return nil
	}
	return permanent{fmt.Errorf("%s does not support block volume provisioning", ctrl.name)}
}

// permanent is an error that only a change of the claim or its class mends.
type permanent struct{ error }

func (p permanent) Unwrap() error    { return p.error }
func (p permanent) Infeasible() bool { return true }

// notProvisioned takes in a failure of the provisioner.
func (ctrl *ProvisionController) notProvisioned(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, state ProvisioningState, err error) error {
	_, begun := ctrl.ops.get(claim.UID)
	var ignored *IgnoredError
	switch {
	case !errors.As(err, &ignored):
	case begun:
		// Nothing was done, and so what was begun is still under way.
		state = ProvisioningNoChange
	default:
		ctrl.metrics.provisionFailed(claim)
		klog.FromContext(ctx).Info("The claim is not provisioned", "reason", ignored.Reason)
		return nil
	}
	switch state {
	case ProvisioningFinished:
		ctrl.ops.end(claim.UID)
	case ProvisioningNoChange:
	case ProvisioningReschedule:
		ctrl.ops.end(claim.UID)
		if unselected := ctrl.reschedule(ctx, claim); unselected != nil {
			err = errors.Join(err, unselected)
		}
	default:
		// In the background, or an answer that means nothing to us.
		ctrl.ops.begin(claim.UID, operation{claim: claim, since: ctrl.clock.Now()})
	}
	ctrl.ops.fail(claim.UID)
	if infeasible(err) && class != nil && state == ProvisioningFinished {
		ctrl.slow.add(claim, class, ctrl.clock.Now().Add(ctrl.retryMax))
		err = permanent{fmt.Errorf("%w. Volume provisioning failed with infeasible error. Retries will be delayed", err)}
	}
	return ctrl.failed(claim, fmt.Errorf("failed to provision volume with StorageClass %q: %w", className(claim), err))
}

// failed tells the claim of an error, and returns it.
func (ctrl *ProvisionController) failed(claim *v1.PersistentVolumeClaim, err error) error {
	ctrl.metrics.provisionFailed(claim)
	ctrl.recorder.Event(claim, v1.EventTypeWarning, ReasonProvisioningFailed, err.Error())
	return err
}

// complete fills in what is the same for all provisioners.
func (ctrl *ProvisionController) complete(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, options VolumeOptions) *v1.PersistentVolume {
	pv = pv.DeepCopy()
	pv.Name = options.PVName
	pv.Spec.ClaimRef = &v1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: v1.SchemeGroupVersion.String(),
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	pv.Spec.StorageClassName = cmp.Or(className(claim), pv.Spec.StorageClassName)
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, AnnotationProvisionedBy, ctrl.provisionedBy(pv, claim, class))
	if ctrl.rules.before(6) {
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, annotationStorageClass, className(claim))
	}
	return pv
}

// provisionedBy is the name under which a PersistentVolume is ours: that of its
// class, unless the class has gone or is another's by now.
func (ctrl *ProvisionController) provisionedBy(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	if class != nil && ctrl.rules.ours(class.Provisioner) {
		return class.Provisioner
	}
	for _, name := range []string{pv.Annotations[AnnotationProvisionedBy], StorageProvisioner(claim)} {
		if ctrl.rules.ours(name) {
			return name
		}
	}
	return ctrl.name
}
