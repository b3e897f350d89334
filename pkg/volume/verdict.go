package volume

import "time"

// State is what is believed about a volume, worst first in Severity.
type State string

const (
	// StateUnknown: nothing usable was heard. Never a reason to act.
	StateUnknown State = "Unknown"
	// StateHealthy: an explicit healthy answer, or two complete sweeps without
	// the volume.
	StateHealthy State = "Healthy"
	// StateDegraded: works with reduced capability, or abnormal in a way the
	// driver does not tell. Reported only.
	StateDegraded State = "Degraded"
	// StateInaccessible: cannot be reached from the verdict's node, or from
	// anywhere when the key names no node.
	StateInaccessible State = "Inaccessible"
	// StateDataLoss: reported only.
	StateDataLoss State = "DataLoss"
)

// Severity orders states: the worst wins when sources disagree (CSI: "CO SHALL
// assume the worst case is the truth").
func (s State) Severity() int {
	switch s {
	case StateDataLoss:
		return 4
	case StateInaccessible:
		return 3
	case StateDegraded:
		return 2
	case StateHealthy:
		return 1
	default:
		return 0
	}
}

// Verdict is what health believes of a volume, seen from a node or from
// everywhere.
type Verdict struct {
	Key   Key
	State State
	// Confirmed is true once the configured number of observations, or the
	// configured age, is reached. Only a confirmed verdict is acted on.
	Confirmed bool
	// Since is when the state was first observed without interruption, by this
	// process's clock.
	Since time.Time
	// ConfirmedAt is when it was confirmed; zero while it is not.
	ConfirmedAt time.Time
	// SuspectUntil is set once nobody probes the key any more, since its
	// VolumeAttachment is gone, or the pod that it failed: until then the node is
	// not trusted with the volume. Zero while the key is being observed.
	SuspectUntil time.Time
	Reason       string
	Message      string
	Source       Source
}

// FailsFromNode reports whether the verdict is the one kind that a failover
// may answer: confirmed inaccessible from one named node.
func (v Verdict) FailsFromNode() bool {
	return v.State == StateInaccessible && v.Confirmed && !v.Key.Everywhere()
}

// Suspect reports whether the verdict is kept from memory and no longer
// observed.
func (v Verdict) Suspect() bool { return !v.SuspectUntil.IsZero() }
