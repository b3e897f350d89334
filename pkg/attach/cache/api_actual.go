package cache

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/operationexecutor"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// AttachedVolume is a volume that is attached to a node, or may be.
type AttachedVolume struct {
	operationexecutor.AttachedVolume

	// MountedByNode is true where the node has the volume mounted, as far as is
	// known, so that it is not safe to detach.
	MountedByNode bool

	// DetachRequestedTime is when SetDetachRequestTime was first called since
	// the pair was added or ResetDetachRequestTime called; else it is zero.
	DetachRequestedTime time.Time
}

// ActualStateOfWorld is what is known of which volumes are attached to which
// nodes. Its methods may be called from any goroutine, and each takes effect at
// one instant. What they return is the caller's own, but for the VolumeSpecs.
type ActualStateOfWorld interface {
	operationexecutor.ActualStateOfWorldAttacherUpdater

	// AddVolumeNode records that the volume is attached to the node, and reports
	// it. It returns the volume's name. It is an error, and nothing is recorded,
	// if the spec names no volume of an attachable driver.
	AddVolumeNode(volumeSpec *volume.Spec, nodeName string, devicePath string) (v1.UniqueVolumeName, error)

	// SetVolumeMountedByNode sets MountedByNode of the pair, which must exist.
	// In mode Seed false has no effect unless true came before.
	SetVolumeMountedByNode(volumeName v1.UniqueVolumeName, nodeName string, mounted bool) error

	// ResetNodeStatusUpdateNeeded tells that the node's status.volumesAttached
	// was written. It is an error if nothing was ever reported for the node. In
	// mode Modern it changes nothing: taking the report has reset the flag.
	ResetNodeStatusUpdateNeeded(nodeName string) error

	// ResetDetachRequestTime ends a detach request; without the pair it does
	// nothing.
	ResetDetachRequestTime(volumeName v1.UniqueVolumeName, nodeName string)

	// SetDetachRequestTime begins a detach request, unless one is going on, and
	// returns how long it has been going on. It is an error if there is no such
	// pair.
	SetDetachRequestTime(volumeName v1.UniqueVolumeName, nodeName string) (time.Duration, error)

	// DeleteVolumeNode forgets the pair, and takes it out of the report; without
	// the pair it does nothing.
	DeleteVolumeNode(volumeName v1.UniqueVolumeName, nodeName string)

	// VolumeNodeExists reports whether the pair is recorded, be it uncertain.
	VolumeNodeExists(volumeName v1.UniqueVolumeName, nodeName string) bool

	// GetAttachedVolumes returns all pairs, in any order.
	GetAttachedVolumes() []AttachedVolume

	// GetAttachedVolumesForNode returns the node's pairs, in any order.
	GetAttachedVolumesForNode(nodeName string) []AttachedVolume

	// GetVolumesToReportAttached returns, for each node whose
	// status.volumesAttached has to be written, what to write: an empty list
	// too, and nil if there is no such node. In mode Seed nodes come again until
	// ResetNodeStatusUpdateNeeded; in mode Modern they come once, and whoever
	// fails to write calls SetNodeStatusUpdateNeeded.
	GetVolumesToReportAttached() map[string][]v1.AttachedVolume

	AttachStates
}

// AttachState is what is known of a volume on a node.
type AttachState int

const (
	// AttachStateDetached: there is no such pair.
	AttachStateDetached AttachState = iota
	// AttachStateAttached: an attach was confirmed.
	AttachStateAttached
	// AttachStateUncertain: an attach or a detach was begun, and its end is not
	// known.
	AttachStateUncertain
)

// AttachStates is what ActualStateOfWorld has beyond the seed. These methods do
// the same in both modes.
type AttachStates interface {
	// AddVolumeNodeAs is AddVolumeNode for a pair that may be uncertain: then
	// attached is false, and the pair is not reported, or stays reported if it
	// was. With a volumeName the spec is not looked at, and may be nil.
	AddVolumeNodeAs(volumeName v1.UniqueVolumeName, volumeSpec *volume.Spec, nodeName string, devicePath string, attached bool) (v1.UniqueVolumeName, error)

	// MarkVolumeAsUncertain tells that the volume may be attached to the node.
	// Its device path is forgotten.
	MarkVolumeAsUncertain(volumeName v1.UniqueVolumeName, volumeSpec *volume.Spec, nodeName string) error

	// GetAttachState is to be read after, not before, the caller has made sure
	// that no operation on the volume is going on.
	GetAttachState(volumeName v1.UniqueVolumeName, nodeName string) AttachState

	// SetVolumesMountedByNode sets MountedByNode of all pairs of the node from
	// its status.volumesInUse. In mode Modern it also holds for pairs that are
	// added later, until the next call.
	SetVolumesMountedByNode(volumeNames []v1.UniqueVolumeName, nodeName string)

	// SetNodeStatusUpdateNeeded makes the node be reported again. It is an error
	// if nothing was ever reported for it.
	SetNodeStatusUpdateNeeded(nodeName string) error

	// GetVolumesToReportAttachedForNode takes the report of one node, and is
	// false if its status.volumesAttached does not have to be written.
	GetVolumesToReportAttachedForNode(nodeName string) (bool, []v1.AttachedVolume)

	// GetAttachedVolumesPerNode returns the pairs that are not uncertain.
	GetAttachedVolumesPerNode() map[string][]operationexecutor.AttachedVolume

	// GetNodesForAttachedVolume returns the nodes to which the volume is
	// attached for certain.
	GetNodesForAttachedVolume(volumeName v1.UniqueVolumeName) []string
}
