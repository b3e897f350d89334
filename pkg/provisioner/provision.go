package provisioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"
	"k8s.io/klog/v2"
)

// slowProvision is how long a volume may take before an event says that it is
// being made: a fast one has the event of its success alone.
const slowProvision = time.Second

// provisioned reports whether a claim has its PersistentVolume already. Informers
// may lag: what we saved ourselves counts until the claim is seen bound.
func (ctrl *ProvisionController) provisioned(ctx context.Context, claim *v1.PersistentVolumeClaim) (bool, error) {
	name := ctrl.volumeName(claim)
	if pv, err := ctrl.volumes.Get(name); err == nil {
		return true, ctrl.occupied(claim, pv)
	}
	if ctrl.ops.savedAs(claim.UID) == "" {
		return false, nil
	}
	live, err := ctrl.liveClaim(ctx, claim.Namespace, claim.Name, claim.UID)
	if err != nil || live == nil || live.Spec.VolumeName != "" {
		return true, err
	}
	pv, err := ctrl.livePV(ctx, name)
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
	abandoned := claim == nil
	if abandoned {
		claim = op.claim
	}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("claim", klog.KObj(claim)))
	if op.found {
		// The earlier process may have saved the PersistentVolume.
		pv, err := ctrl.livePV(ctx, ctrl.volumeName(claim))
		if err != nil {
			return err
		}
		if pv != nil && claimedBy(pv, claim) {
			ctrl.ops.save(claim.UID, pv.Name)
			ctrl.settle(claim.UID)
			return nil
		}
	}
	if op.pv != nil {
		return ctrl.save(ctx, claim, op.pv)
	}
	class, err := ctrl.class(claim)
	if err != nil {
		if !apierrors.IsNotFound(err) {
			return err
		}
		class = nil
	}
	return ctrl.provision(ctx, claim, class, abandoned)
}

// provision makes the volume of a claim. class is nil only where the volume may
// exist and the class has gone.
func (ctrl *ProvisionController) provision(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, abandoned bool) error {
	options := VolumeOptions{
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete,
		PVName:                        ctrl.volumeName(claim), PVC: claim, StorageClass: class, SelectedNode: selectedNode(claim), Abandoned: abandoned,
	}
	if class != nil {
		options.Parameters = class.Parameters
		if class.ReclaimPolicy != nil {
			options.PersistentVolumeReclaimPolicy = *class.ReclaimPolicy
		}
	}
	if err := ctrl.canProvision(ctx, claim); err != nil {
		return ctrl.failed(claim, err)
	}
	slow := time.AfterFunc(slowProvision, func() {
		ctrl.recorder.Eventf(claim, v1.EventTypeNormal, ReasonProvisioning, "External provisioner is provisioning volume for claim %q", claim.Namespace+"/"+claim.Name)
	})
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
	if pv, err = ctrl.complete(pv, claim, class, options); err != nil {
		return err
	}
	ctrl.ops.begin(claim.UID, operation{claim: claim, pv: pv})
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
	var ignored *IgnoredError
	if errors.As(err, &ignored) {
		ctrl.ops.end(claim.UID)
		ctrl.metrics.provisionFailed(claim)
		klog.FromContext(ctx).Info("The claim is not provisioned", "reason", ignored.Reason)
		return nil
	}
	switch state {
	case ProvisioningInBackground:
		ctrl.ops.begin(claim.UID, operation{claim: claim})
	case ProvisioningNoChange:
	case ProvisioningReschedule:
		ctrl.ops.end(claim.UID)
		if unselected := ctrl.reschedule(ctx, claim); unselected != nil {
			err = errors.Join(err, unselected)
		}
	default:
		ctrl.ops.end(claim.UID)
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
func (ctrl *ProvisionController) complete(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, options VolumeOptions) (*v1.PersistentVolume, error) {
	ref, err := reference.GetReference(scheme.Scheme, claim)
	if err != nil {
		return nil, fmt.Errorf("referring to claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	pv = pv.DeepCopy()
	pv.Name = options.PVName
	pv.Spec.ClaimRef = ref
	if class != nil {
		// A class that was made anew for another provisioner does not make it the
		// volume's.
		if _, told := pv.Annotations[AnnotationProvisionedBy]; !told || ctrl.rules.ours(class.Provisioner) {
			metav1.SetMetaDataAnnotation(&pv.ObjectMeta, AnnotationProvisionedBy, class.Provisioner)
		}
		pv.Spec.StorageClassName = class.Name
		if ctrl.rules.before(6) {
			metav1.SetMetaDataAnnotation(&pv.ObjectMeta, annotationStorageClass, class.Name)
		}
	}
	return pv, nil
}
