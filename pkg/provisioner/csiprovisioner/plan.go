package csiprovisioner

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// plan makes the intent of a volume from what is there now. It calls neither the
// driver nor writes anything.
func (p *Provisioner) plan(ctx context.Context, options provisioner.VolumeOptions) (*intent, error) {
	claim, caps := options.PVC, p.cfg.Capabilities()
	switch {
	case !caps.CreateDelete:
		return nil, refusef("driver %s does not have CREATE_DELETE_VOLUME: name a StorageClass of another driver in a new claim", p.cfg.DriverName)
	case options.StorageClass == nil:
		return nil, fmt.Errorf("the StorageClass of claim %s/%s does not exist: create it", claim.Namespace, claim.Name)
	case claim.Spec.Selector != nil:
		return nil, refusef("claim %s/%s: claim Selector is not supported: remove spec.selector, in a new claim", claim.Namespace, claim.Name)
	}
	class, migrated, err := p.migration.class(ctx, options.StorageClass)
	if err != nil {
		return nil, err
	}
	size, err := requested(claim)
	if err != nil {
		return nil, err
	}
	ref, err := reference.GetReference(scheme.Scheme, claim)
	if err != nil {
		return nil, fmt.Errorf("referring to claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	in := &intent{
		Claim: *ref, Migrated: migrated, Topology: caps.Topology, SelectedNode: options.SelectedNode,
		Request: &csi.CreateVolumeRequest{Name: options.PVName, CapacityRange: &csi.CapacityRange{RequiredBytes: size}},
	}
	fs, err := p.describe(in, claim, class, options)
	if err != nil {
		return nil, err
	}
	in.Request.VolumeCapabilities, err = volumeCapabilities(claim, fs, class.MountOptions, caps.SingleNodeMultiWriter)
	if err != nil {
		return nil, err
	}
	return in, p.consult(ctx, in, claim, class, options.SelectedNode)
}

// consult asks the cluster for what the request needs beside claim and class.
func (p *Provisioner) consult(ctx context.Context, in *intent, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, selectedNode string) (err error) {
	if in.Request.MutableParameters, err = p.mutableParameters(ctx, claim); err != nil {
		return err
	}
	// Not the class's provisioner: that may be the in-tree plugin.
	src, err := p.cfg.Sources.Resolve(ctx, claim, p.cfg.DriverName)
	if err != nil {
		return err
	}
	if src != nil {
		in.Request.VolumeContentSource, in.Source = src.Content, &src.Ref
	}
	if in.Topology {
		if in.Request.AccessibilityRequirements, err = p.cfg.Topology.Requirements(claim.Name, class.AllowedTopologies, selectedNode); err != nil {
			return fmt.Errorf("choosing where the volume is to be: %w", err)
		}
	}
	return nil
}

// requested is the size that a claim asks for, in bytes.
func requested(claim *v1.PersistentVolumeClaim) (int64, error) {
	size, ok := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if !ok {
		return 0, refusef("claim %s/%s asks for no size: set spec.resources.requests.storage", claim.Namespace, claim.Name)
	}
	// A fraction of a byte counts as a whole one.
	bytes := size.Value()
	if bytes <= 0 {
		return 0, refusef("claim %s/%s asks for %s, which is no size: set spec.resources.requests.storage", claim.Namespace, claim.Name, size.String())
	}
	return bytes, nil
}

// describe fills in the parameters and the PersistentVolume, and returns the
// filesystem.
func (p *Provisioner) describe(in *intent, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, options provisioner.VolumeOptions) (fs string, err error) {
	if in.Request.Parameters, err = driverParameters(class.Name, class.Parameters); err != nil {
		return "", err
	}
	if fs, err = fsType(class.Name, class.Parameters, p.cfg.DefaultFSType); err != nil {
		return "", err
	}
	if p.cfg.ExtraCreateMetadata {
		in.Request.Parameters = withMetadata(in.Request.Parameters, claim, options.PVName)
	}
	src := &v1.CSIPersistentVolumeSource{
		Driver: p.cfg.DriverName, ReadOnly: p.cfg.PublishReadOnly && readOnly(claim),
		VolumeAttributes: map[string]string{attributeIdentity: p.cfg.Identity},
	}
	if !isBlock(claim) {
		src.FSType = fs
	}
	in.Volume = &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName, Annotations: map[string]string{
			provisioner.AnnotationProvisionedBy: options.StorageClass.Provisioner,
		}},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, MountOptions: class.MountOptions, VolumeMode: claim.Spec.VolumeMode,
			PersistentVolumeReclaimPolicy: options.PersistentVolumeReclaimPolicy, StorageClassName: options.StorageClass.Name,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: src},
		},
	}
	if name := attributesClass(claim); name != "" {
		in.Volume.Spec.VolumeAttributesClassName = &name
	}
	return fs, p.nameSecrets(in, claim, class, options.PVName)
}

// nameSecrets resolves all secrets that the class names.
func (p *Provisioner) nameSecrets(in *intent, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, pvName string) error {
	csiSource := in.Volume.Spec.CSI
	var modify *v1.SecretReference
	for _, s := range []struct {
		kind secretKind
		ref  **v1.SecretReference
	}{
		{provisionerSecret, &in.Secret},
		{controllerPublishKind, &csiSource.ControllerPublishSecretRef},
		{nodeStageSecret, &csiSource.NodeStageSecretRef},
		{nodePublishSecret, &csiSource.NodePublishSecretRef},
		{controllerExpandSecret, &csiSource.ControllerExpandSecretRef},
		{nodeExpandSecret, &csiSource.NodeExpandSecretRef},
		{controllerModifySecret, &modify},
	} {
		ref, err := secretRef(class.Name, s.kind, class.Parameters, pvName, claim)
		if err != nil {
			return err
		}
		*s.ref = ref
	}
	annotations := in.Volume.Annotations
	// They are there, empty, also without a secret: external-provisioner looks at
	// the class only where they are missing.
	annotations[annotationDeletionSecretName], annotations[annotationDeletionSecretNamespace] = "", ""
	if in.Secret != nil {
		annotations[annotationDeletionSecretName], annotations[annotationDeletionSecretNamespace] = in.Secret.Name, in.Secret.Namespace
	}
	if modify != nil {
		annotations[annotationModifySecretName], annotations[annotationModifySecretNamespace] = modify.Name, modify.Namespace
	}
	return nil
}
