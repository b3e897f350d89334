package mount

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// request is a CSI volume of a pod, looked up.
type request struct {
	pod      *v1.Pod
	name     string // the pod's own name of the volume
	readOnly bool
	pv       *v1.PersistentVolume
	driver   csinode.Driver
	object   *storagev1.CSIDriver // nil where the cluster has none
}

func (r *request) source() *v1.CSIPersistentVolumeSource { return r.pv.Spec.CSI }

func (r *request) handle() volume.Handle { return volume.Handle(r.source().VolumeHandle) }

// attachable follows the kubelet: without a CSIDriver object a volume has to be
// attached.
func (r *request) attachable() bool {
	return r.object == nil || r.object.Spec.AttachRequired == nil || *r.object.Spec.AttachRequired
}

// resolve looks up the claim, the volume and the driver, all live: the node may
// GET what its pods name, and no more.
func (m *Manager) resolve(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (*request, error) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.APITimeout)
	defer cancel()
	claim, err := m.claimOf(ctx, pod, vol)
	if err != nil {
		return nil, err
	}
	pv, err := m.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading volume %s: %w", claim.Spec.VolumeName, err)
	}
	if err := checkPV(pv, claim); err != nil {
		return nil, err
	}
	driver, err := m.cfg.Drivers.Get(pv.Spec.CSI.Driver)
	if err != nil {
		return nil, err
	}
	object, err := m.cfg.Client.StorageV1().CSIDrivers().Get(ctx, pv.Spec.CSI.Driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		object, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading CSIDriver %s: %w", pv.Spec.CSI.Driver, err)
	}
	readOnly := pv.Spec.CSI.ReadOnly || vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly
	return &request{pod: pod, name: vol.Name, readOnly: readOnly, pv: pv, driver: driver, object: object}, nil
}

func (m *Manager) claimOf(ctx context.Context, pod *v1.Pod, vol *v1.Volume) (*v1.PersistentVolumeClaim, error) {
	name := kube.ClaimNames(pod)[vol.Name]
	claim, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading claim %s: %w", name, err)
	}
	if vol.Ephemeral != nil && !metav1.IsControlledBy(claim, pod) {
		return nil, fmt.Errorf("claim %s was not made for this pod", name)
	}
	if claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s is not bound", name)
	}
	return claim, nil
}

func checkPV(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	switch ref := pv.Spec.ClaimRef; {
	case ref == nil || ref.UID != claim.UID:
		return fmt.Errorf("volume %s is not bound to claim %s", pv.Name, claim.Name)
	case pv.Spec.CSI == nil:
		return fmt.Errorf("volume %s is not a CSI volume", pv.Name)
	case pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock:
		return fmt.Errorf("volume %s is a block device, which the virtual node does not support", pv.Name)
	}
	return nil
}

// secret reads a secret that a PersistentVolume names; nil for none.
func (m *Manager) secret(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.APITimeout)
	defer cancel()
	secret, err := m.cfg.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading secret %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		out[key] = string(value)
	}
	return out, nil
}
