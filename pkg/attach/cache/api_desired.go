package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/operationexecutor"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// VolumeToAttach is a volume that should be attached to a node.
type VolumeToAttach struct {
	operationexecutor.VolumeToAttach
}

// PodToAdd is a pod that uses a volume on a node.
type PodToAdd struct {
	Pod        *v1.Pod
	VolumeName v1.UniqueVolumeName
	NodeName   string
}

// DesiredStateOfWorld is which volumes should be attached to which nodes, and
// the pods for which. Its methods may be called from any goroutine, and each
// takes effect at one instant. The modes do not differ here.
type DesiredStateOfWorld interface {
	// AddNode begins to manage the node; its volumes stay if it is managed
	// already.
	AddNode(nodeName string)

	// AddPod records that the pod on the node uses the volume, and returns the
	// volume's name. A pod that is recorded already stays as it is, spec and
	// all. It is an error, and nothing is recorded, if the node is not managed
	// or the spec names no volume of an attachable driver.
	AddPod(podName types.UniquePodName, pod *v1.Pod, volumeSpec *volume.Spec, nodeName string) (v1.UniqueVolumeName, error)

	// DeleteNode ends managing the node. It is an error if volumes should be
	// attached to it; a node that is not managed is none.
	DeleteNode(nodeName string) error

	// DeletePod forgets that the pod uses the volume on the node, and with its
	// last pod the volume. Without them it does nothing.
	DeletePod(podName types.UniquePodName, volumeName v1.UniqueVolumeName, nodeName string)

	// NodeExists reports whether the node is managed.
	NodeExists(nodeName string) bool

	// VolumeExists reports whether the volume should be attached to the node.
	VolumeExists(volumeName v1.UniqueVolumeName, nodeName string) bool

	// GetVolumesToAttach returns what should be attached, in any order.
	GetVolumesToAttach() []VolumeToAttach

	// GetPodToAdd returns each pod once, with one of its volumes: whoever
	// deletes what it returns has deleted a pod with n volumes after n times.
	GetPodToAdd() map[types.UniquePodName]PodToAdd

	MultiAttach
}

// MultiAttach is what DesiredStateOfWorld has beyond the seed: what is needed
// to tell of a volume that cannot be attached because it is in use elsewhere.
type MultiAttach interface {
	// SetMultiAttachError notes that this was told; it is forgotten with the
	// volume on the node.
	SetMultiAttachError(volumeName v1.UniqueVolumeName, nodeName string)

	// MultiAttachErrorReported reports whether it was noted.
	MultiAttachErrorReported(volumeName v1.UniqueVolumeName, nodeName string) bool

	// GetVolumePodsOnNodes returns the pods that use the volume on the nodes.
	GetVolumePodsOnNodes(nodeNames []string, volumeName v1.UniqueVolumeName) []*v1.Pod
}
