package provisioner

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Names of the indexes that we add to shared informers.
const (
	byUID    = "provisioner/uid"
	byHandle = "provisioner/handle"
	bySource = "provisioner/source"
)

// claimUID indexes claims by their UID, since one may follow another under its
// name.
func claimUID(obj any) ([]string, error) {
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok {
		return []string{string(claim.UID)}, nil
	}
	return nil, nil
}

// volumeHandle indexes PersistentVolumes by their CSI volume.
func volumeHandle(obj any) ([]string, error) {
	if pv, ok := obj.(*v1.PersistentVolume); ok && pv.Spec.CSI != nil {
		return []string{csiName(pv.Spec.CSI)}, nil
	}
	return nil, nil
}

// attachmentSource indexes VolumeAttachments by what they attach.
func attachmentSource(obj any) ([]string, error) {
	va, ok := obj.(*storagev1.VolumeAttachment)
	if !ok {
		return nil, nil
	}
	switch src := va.Spec.Source; {
	case src.PersistentVolumeName != nil:
		return []string{pvSource(*src.PersistentVolumeName)}, nil
	case src.InlineVolumeSpec != nil && src.InlineVolumeSpec.CSI != nil:
		return []string{csiName(src.InlineVolumeSpec.CSI)}, nil
	default:
		return nil, nil
	}
}

func pvSource(name string) string { return "pv/" + name }

func csiName(src *v1.CSIPersistentVolumeSource) string {
	return string(volume.UniqueName(src.Driver, volume.Handle(src.VolumeHandle)))
}
