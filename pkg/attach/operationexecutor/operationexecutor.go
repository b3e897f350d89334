// Package operationexecutor holds what whoever carries attach and detach
// operations out needs of the caches of pkg/attach/cache: the description of
// its work, and where to tell what came of it.
package operationexecutor

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// ActualStateOfWorldAttacherUpdater is told what attach and detach operations
// did.
type ActualStateOfWorldAttacherUpdater interface {
	// MarkVolumeAsAttached tells that the volume is attached to the node.
	MarkVolumeAsAttached(volumeName v1.UniqueVolumeName, volumeSpec *volume.Spec, nodeName string, devicePath string) error

	// MarkVolumeAsDetached tells that the volume is detached from the node.
	MarkVolumeAsDetached(volumeName v1.UniqueVolumeName, nodeName string)

	// RemoveVolumeFromReportAsAttached takes the volume out of what is to be
	// written to the node's status.volumesAttached. It is called before a
	// detach, so that the node does not mount a volume on its way out.
	RemoveVolumeFromReportAsAttached(volumeName v1.UniqueVolumeName, nodeName string) error

	// AddVolumeToReportAsAttached undoes RemoveVolumeFromReportAsAttached,
	// where the detach did not take place.
	AddVolumeToReportAsAttached(volumeName v1.UniqueVolumeName, nodeName string)
}

// AttachedVolume is a volume that is attached to a node.
type AttachedVolume struct {
	// VolumeName is the name in node.status.volumesAttached.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is as given when the volume was attached; it may be nil where
	// only the name was known.
	VolumeSpec *volume.Spec
	// NodeName is the name of the Node object.
	NodeName string
	// DevicePath is what the attach operation returned; its form is the
	// driver's.
	DevicePath string
	// PluginIsAttachable is true for all volumes of the caches.
	PluginIsAttachable bool
}

// VolumeToAttach is a volume that should be attached to a node.
type VolumeToAttach struct {
	// VolumeName is the name in node.status.volumesAttached.
	VolumeName v1.UniqueVolumeName
	// VolumeSpec is that of the first pod that asked for the volume.
	VolumeSpec *volume.Spec
	// NodeName is the name of the Node object.
	NodeName string
	// ScheduledPods are the pods on the node that use the volume.
	ScheduledPods []*v1.Pod
}
