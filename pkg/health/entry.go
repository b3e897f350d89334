package health

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Status is a verdict with what it rests on.
type Status struct {
	volume.Verdict
	// Waiting is set while an old enough status cannot be confirmed.
	Waiting Waiting
	// Conditions are those of the word that the verdict was taken from.
	Conditions []volume.Condition
}

// Abnormal reports whether the status is adverse, confirmed or not.
func (s Status) Abnormal() bool { return s.State.Severity() > volume.StateHealthy.Severity() }

// entry is all that is known of one key.
type entry struct {
	words map[origin]*word
	// suspicion is what is left of a failing verdict that nobody observes any
	// more; nil for none.
	suspicion *suspicion
	// strikes counts how often in a row the key became suspect; it is forgotten
	// at strikesUntil or with an explicit healthy answer.
	strikes      int
	strikesUntil time.Time
}

// suspicion is a failing word kept from memory.
type suspicion struct {
	word   word
	source volume.Source
	// began is when the incident ended that it is about.
	began time.Time
	until time.Time
}

// idle reports whether the entry holds nothing worth keeping.
func (e *entry) idle() bool {
	return len(e.words) == 0 && e.suspicion == nil && e.strikes == 0
}

// origins lists who speaks, in a fixed order, so that verdicts do not depend on
// the order of a map.
func (e *entry) origins() []origin {
	return slices.SortedFunc(maps.Keys(e.words), func(a, b origin) int {
		if c := strings.Compare(string(a.source), string(b.source)); c != 0 {
			return c
		}
		return strings.Compare(a.object, b.object)
	})
}

// status merges the words: the worst wins, the confirmed one among equals. What
// is kept from memory counts unless somebody confirms as much now.
func (e *entry) status(key volume.Key) Status {
	var best *word
	var source volume.Source
	for _, o := range e.origins() {
		if w := e.words[o]; best == nil || outweighs(w, best) {
			best, source = w, o.source
		}
	}
	if s := e.suspicion; s != nil && (best == nil || outweighs(&s.word, best)) {
		status := verdictOf(key, s.source, &s.word)
		status.SuspectUntil = s.until
		return status
	}
	if best == nil {
		return Status{Verdict: volume.Verdict{Key: key, State: volume.StateHealthy}}
	}
	return verdictOf(key, source, best)
}

func outweighs(a, b *word) bool {
	if sa, sb := a.state.Severity(), b.state.Severity(); sa != sb {
		return sa > sb
	}
	return a.confirmed() && !b.confirmed()
}

func verdictOf(key volume.Key, source volume.Source, w *word) Status {
	return Status{
		Verdict: volume.Verdict{
			Key:         key,
			State:       w.state,
			Confirmed:   w.confirmed(),
			Since:       w.since,
			ConfirmedAt: w.confirmedAt,
			Reason:      w.worst.Reason,
			Message:     w.worst.Message,
			Source:      source,
		},
		Waiting:    w.waiting,
		Conditions: w.conditions,
	}
}
