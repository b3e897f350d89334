package csiprovisioner

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
	v1 "k8s.io/api/core/v1"
)

// volumeCapabilities tells CSI how a claim wants to use its volume: one capability
// for each access mode.
func volumeCapabilities(claim *v1.PersistentVolumeClaim, fsType string, mountFlags []string, singleNodeMultiWriter bool) ([]*csi.VolumeCapability, error) {
	if len(claim.Spec.AccessModes) == 0 {
		return nil, refusef("claim %s/%s has no access mode: name one in spec.accessModes", claim.Namespace, claim.Name)
	}
	capabilities := make([]*csi.VolumeCapability, 0, len(claim.Spec.AccessModes))
	for _, mode := range claim.Spec.AccessModes {
		csiMode, err := accessmodes.ToCSIAccessMode([]v1.PersistentVolumeAccessMode{mode}, singleNodeMultiWriter)
		if err != nil {
			return nil, refusef("claim %s/%s: access mode %q is not known: %v; correct spec.accessModes in a new claim", claim.Namespace, claim.Name, mode, err)
		}
		capability := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csiMode}}
		if isBlock(claim) {
			capability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		} else {
			capability.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: mountFlags}}
		}
		capabilities = append(capabilities, capability)
	}
	return capabilities, nil
}

func isBlock(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode == v1.PersistentVolumeBlock
}

// readOnly reports whether a volume can only ever be read.
func readOnly(claim *v1.PersistentVolumeClaim) bool {
	return len(claim.Spec.AccessModes) == 1 && claim.Spec.AccessModes[0] == v1.ReadOnlyMany
}
