package volume

import "time"

// ConditionKind is the category of an adverse health condition.
type ConditionKind string

const (
	// DataLoss: data of the volume is lost. Reported, never acted on.
	DataLoss ConditionKind = "DataLoss"
	// Inaccessible: the volume cannot be reached, from one node or from all
	// (see Key.Everywhere).
	Inaccessible ConditionKind = "Inaccessible"
	// Degraded: the volume works with reduced capability. Reported only.
	Degraded ConditionKind = "Degraded"
	// Abnormal is VolumeCondition.abnormal of CSI 1.3 to 1.12, which does not
	// say what is wrong nor from where.
	Abnormal ConditionKind = "Abnormal"
	// UnknownCondition is a category that this version does not know. It is
	// not healthy, and it is no reason to act (CSI: an unknown
	// VolumeHealthErrorType must be ignored).
	UnknownCondition ConditionKind = "Unknown"
)

// Condition is one adverse health condition of a volume.
type Condition struct {
	Kind ConditionKind `json:"kind"`
	// Reason is CamelCase and machine-readable, 256 bytes at most.
	Reason string `json:"reason,omitempty"`
	// Message is for people, valid UTF-8, 1024 bytes at most.
	Message string `json:"message,omitempty"`
}

// Source says where a reading comes from.
type Source string

const (
	// SourceController: the controller plugin, polled. Confirmed by number of
	// consecutive observations.
	SourceController Source = "controller"
	// SourcePodStatus: Pod.status.volumeHealth, written on change only by the
	// kubelet. Confirmed by age.
	SourcePodStatus Source = "pod-status"
	// SourceCSINodeStatus: CSINode.status.storageHealth, written on change only
	// by the kubelet. Confirmed by age.
	SourceCSINodeStatus Source = "csinode-status"
)

// Polled reports whether the source is asked again and again, as opposed to
// stored once on a change.
func (s Source) Polled() bool { return s == SourceController }

// Reading is one answer about one volume. A failed call is no reading.
type Reading struct {
	Key    Key
	Source Source
	// Conditions is empty for an explicitly healthy answer.
	Conditions []Condition
	// Started is when the call began, or when a stored status was first seen,
	// by this process's clock.
	Started time.Time
}

// Healthy reports whether the reading is an explicit healthy answer.
func (r Reading) Healthy() bool { return len(r.Conditions) == 0 }

// Sweep is one pass over the driver's volumes.
type Sweep struct {
	Readings []Reading
	// Complete is true when every page, or every volume, was answered. An
	// incomplete sweep still carries what was read.
	Complete bool
	// AbnormalOnly is true when the driver lists adverse volumes only, so that
	// absence from two complete sweeps in a row is a recovery.
	AbnormalOnly bool
	// Skipped counts entries that could not be used: without a volume, without
	// a status, with an empty handle.
	Skipped int
}
