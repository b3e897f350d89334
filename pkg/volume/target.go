package volume

import "k8s.io/apimachinery/pkg/types"

// Target is one VolumeAttachment of a closure and the pods that go with it.
// A closure is, on one failing node: the pods that use the failing volume, all
// volumes of those pods, and all pods there that use those.
type Target struct {
	// PV is the name of the PersistentVolume.
	PV string `json:"pv"`
	// Node is the name of the node that loses the volume.
	Node string `json:"node"`
	// VolumeAttachmentUID binds the target to one attachment: a re-created one
	// has the same name and another UID.
	VolumeAttachmentUID types.UID `json:"volumeAttachmentUID"`
	// PodUIDs are the pods on Node that use the volume.
	PodUIDs []types.UID `json:"podUIDs,omitempty"`
}
