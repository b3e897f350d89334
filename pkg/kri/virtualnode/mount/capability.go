package mount

import (
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
)

// capability is how the pod wants the volume: a file system, with the access
// mode that the PersistentVolume's modes amount to.
func capability(req *request) *csi.VolumeCapability {
	multiWriter := req.driver.Has(csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	mode, err := accessmodes.ToCSIAccessMode(req.pv.Spec.AccessModes, multiWriter)
	if err != nil { // No mode, or one that nobody knows: the narrowest.
		mode = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
			FsType: req.source().FSType, MountFlags: req.pv.Spec.MountOptions,
		}},
	}
}

// volumeContext adds the pod to the volume's attributes where the CSIDriver
// object asks for it.
func volumeContext(req *request) map[string]string {
	out := maps.Clone(req.source().VolumeAttributes)
	if req.object == nil || req.object.Spec.PodInfoOnMount == nil || !*req.object.Spec.PodInfoOnMount {
		return out
	}
	if out == nil {
		out = map[string]string{}
	}
	out["csi.storage.k8s.io/pod.name"] = req.pod.Name
	out["csi.storage.k8s.io/pod.namespace"] = req.pod.Namespace
	out["csi.storage.k8s.io/pod.uid"] = string(req.pod.UID)
	out["csi.storage.k8s.io/serviceAccount.name"] = req.pod.Spec.ServiceAccountName
	out["csi.storage.k8s.io/ephemeral"] = "false"
	return out
}
