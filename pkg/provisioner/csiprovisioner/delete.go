package csiprovisioner

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Delete implements provisioner.Provisioner.
func (p *Provisioner) Delete(*v1.PersistentVolume) error {
	return errors.New("csiprovisioner: call DeleteExt")
}

// DeleteExt implements provisioner.ContextDeleter. It may be called again after it
// has succeeded.
func (p *Provisioner) DeleteExt(ctx context.Context, pv *v1.PersistentVolume) error {
	if !p.cfg.Mine(pv) {
		return &provisioner.IgnoredError{Reason: "the volume is not on this node"}
	}
	csiPV, err := p.migration.toCSI(ctx, pv)
	if err != nil {
		return err
	}
	switch {
	case csiPV.Spec.CSI == nil || csiPV.Spec.CSI.VolumeHandle == "":
		return fmt.Errorf("PersistentVolume %s names no CSI volume and no in-tree one that has moved to driver %s: delete its volume by hand, and then its finalizers", pv.Name, p.cfg.DriverName)
	case csiPV.Spec.CSI.Driver != p.cfg.DriverName:
		return fmt.Errorf("PersistentVolume %s is of driver %s, not %s: correct or remove its annotation %s", pv.Name, csiPV.Spec.CSI.Driver, p.cfg.DriverName, provisioner.AnnotationProvisionedBy)
	case !p.cfg.Capabilities().CreateDelete:
		return fmt.Errorf("driver %s does not have CREATE_DELETE_VOLUME: delete volume %s by hand, and then the finalizers of PersistentVolume %s", p.cfg.DriverName, csiPV.Spec.CSI.VolumeHandle, pv.Name)
	}
	secrets, err := p.deletionSecrets(ctx, pv)
	if err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(volume.WithMigrated(ctx, pv.Spec.CSI == nil), p.cfg.Timeout)
	defer cancel()
	_, err = p.cfg.Driver.DeleteVolume(bounded, &csi.DeleteVolumeRequest{VolumeId: csiPV.Spec.CSI.VolumeHandle, Secrets: secrets})
	return err
}

// deletionSecrets are those that the PersistentVolume names, or its class where it
// does not. Where the secret is gone the driver is called without: it may not
// need it, and else says so.
func (p *Provisioner) deletionSecrets(ctx context.Context, pv *v1.PersistentVolume) (map[string]string, error) {
	ref, err := p.deletionSecretRef(ctx, pv)
	if err != nil {
		return nil, err
	}
	secrets, err := p.secret(ctx, ref)
	if errors.Is(err, errNoSecret) {
		klog.FromContext(ctx).Info("The volume is deleted without its secret, which does not exist", "secret", klog.KRef(ref.Namespace, ref.Name))
		return nil, nil
	}
	return secrets, err
}

func (p *Provisioner) deletionSecretRef(ctx context.Context, pv *v1.PersistentVolume) (*v1.SecretReference, error) {
	name, named := pv.Annotations[annotationDeletionSecretName]
	namespace, placed := pv.Annotations[annotationDeletionSecretNamespace]
	switch {
	case name != "" && namespace != "":
		return &v1.SecretReference{Name: name, Namespace: namespace}, nil
	case named && placed:
		return nil, nil
	case pv.Spec.StorageClassName == "":
		return nil, nil
	}
	class, err := p.cfg.Classes.Get(pv.Spec.StorageClassName)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading StorageClass %s: %w", pv.Spec.StorageClassName, err)
	}
	class, _, err = p.migration.class(ctx, class)
	if err != nil {
		return nil, err
	}
	// The claim is gone, and so a name that was made of it cannot be resolved.
	var claim *v1.PersistentVolumeClaim
	if ref := pv.Spec.ClaimRef; ref != nil {
		claim = &v1.PersistentVolumeClaim{}
		claim.Namespace, claim.Name = ref.Namespace, ref.Name
	}
	ref, err := secretRef(class.Name, provisionerSecret, class.Parameters, pv.Name, claim)
	if err != nil {
		return nil, fmt.Errorf("finding the secret to delete the volume with: %w; name it in the annotations %s and %s of PersistentVolume %s", err, annotationDeletionSecretName, annotationDeletionSecretNamespace, pv.Name)
	}
	return ref, nil
}
