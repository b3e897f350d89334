package csiprovisioner

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mutableParameters are those of the claim's VolumeAttributesClass, read live.
func (p *Provisioner) mutableParameters(ctx context.Context, claim *v1.PersistentVolumeClaim) (map[string]string, error) {
	name := attributesClass(claim)
	if name == "" {
		return nil, nil
	}
	if !p.cfg.Capabilities().Modify {
		return nil, refusef("claim %s/%s names VolumeAttributesClass %q, and driver %s does not have MODIFY_VOLUME, or the feature is off: remove spec.volumeAttributesClassName", claim.Namespace, claim.Name, name, p.cfg.DriverName)
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	class, err := p.cfg.Client.StorageV1().VolumeAttributesClasses().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("VolumeAttributesClass %q of claim %s/%s does not exist: create it", name, claim.Namespace, claim.Name)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("reading VolumeAttributesClass %q: %w; allow get of volumeattributesclasses", name, err)
	case err != nil:
		return nil, fmt.Errorf("reading VolumeAttributesClass %q: %w", name, err)
	case class.DriverName != p.cfg.DriverName:
		return nil, refusef("VolumeAttributesClass %q is for driver %q, not %s: name another in the claim", name, class.DriverName, p.cfg.DriverName)
	}
	return class.Parameters, nil
}

// attributesClass is the class that a claim names, or empty.
func attributesClass(claim *v1.PersistentVolumeClaim) string {
	if claim.Spec.VolumeAttributesClassName == nil {
		return ""
	}
	return *claim.Spec.VolumeAttributesClassName
}
