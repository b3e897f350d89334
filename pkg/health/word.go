package health

import (
	"slices"
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// origin names one speaker: a source and, where the source is stored, the
// object that holds the status.
type origin struct {
	source volume.Source
	// object is a pod's UID or a node's name; empty for the controller plugin.
	object string
}

// Waiting says what keeps an old enough status from being confirmed.
type Waiting string

const (
	// WaitingForLease: the node's Lease was not seen to be renewed, so the
	// status may be a dead kubelet's.
	WaitingForLease Waiting = "lease"
	// WaitingForRead: the live read failed, and is tried again.
	WaitingForRead Waiting = "live-read"
)

// word is what one origin says of one key, for as long as it says it.
type word struct {
	state      volume.State
	conditions []volume.Condition
	worst      volume.Condition
	// since is when the state was first said without interruption.
	since time.Time
	// confirmedAt is zero until enough answers, or age and a check, confirm it.
	confirmedAt time.Time

	// seen counts consecutive answers, and absent complete sweeps in a row that
	// did not name the volume. Polled sources only.
	seen, absent int

	// due is when the word is to be checked; checking is true from then until
	// the answer. Stored sources only.
	due      time.Time
	checking bool
	waiting  Waiting
	// failures counts live reads that failed in a row.
	failures int
	// gone is true once the object stopped saying it without saying otherwise.
	// That is an absence, no recovery, and changes nothing until goneUntil, when
	// the word ends as a suspicion, or until the object itself goes.
	gone      bool
	goneUntil time.Time
}

func (w *word) healthy() bool   { return w.state == volume.StateHealthy }
func (w *word) confirmed() bool { return !w.confirmedAt.IsZero() }

// failing reports whether the word is evidence that outlives its object.
func (w *word) failing() bool {
	return w.state == volume.StateInaccessible && w.confirmed()
}

// say takes a new answer. It reports whether the state changed, which starts
// everything over.
func (w *word) say(state volume.State, worst volume.Condition, conditions []volume.Condition, at time.Time) bool {
	changed := w.state != state
	if changed {
		*w = word{state: state, since: at}
	}
	w.worst, w.conditions = worst, slices.Clone(conditions)
	w.gone, w.goneUntil = false, time.Time{}
	return changed
}

// count notes one more consecutive answer of a polled source.
func (w *word) count(needed int, at, now time.Time) {
	if w.seen == 0 && !w.confirmed() {
		w.since = at
	}
	w.seen++
	w.absent = 0
	if !w.confirmed() && w.seen >= needed {
		w.confirmedAt = now
	}
}

// miss notes a complete sweep that did not name the volume and would have. It
// breaks the streak of what is not confirmed yet, so that a flapping volume is
// never confirmed. It reports whether the word is over: two in a row are a
// recovery.
func (w *word) miss() bool {
	w.absent++
	if !w.confirmed() {
		w.seen = 0
	}
	return w.absent >= 2
}
