package health

import (
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Between failed live reads.
const (
	readRetryMin = time.Second
	readRetryMax = 30 * time.Second
)

// ConfirmedWithin is how long after its first observation a failure that lasts is
// confirmed at the latest, given what Config calls Interval, Confirmations and
// ConfirmAfter, if the driver's sweeps take no longer than an interval together
// and no more than a few live reads fail.
func ConfirmedWithin(interval time.Duration, confirmations int, confirmAfter time.Duration) time.Duration {
	longest := time.Duration(float64(interval) * (1 + jitter))
	return max(time.Duration(confirmations)*longest, confirmAfter+readRetryMax)
}

// check asks for a live read of a stored status that has reached its age.
type check struct {
	origin origin
	// node is the node that the status speaks for, whose Lease must be fresh.
	node string
	keys []volume.Key
}

// answer is what came of a check.
type answer struct {
	check check
	// leaseStale is true when the node's Lease was not seen to be renewed.
	leaseStale bool
	// err is set when the live read failed: that changes nothing.
	err error
	// readings are what the live object says; nil where it says nothing.
	readings []volume.Reading
}

// tick does what is due at now and returns the checks to be made, one for each
// object.
func (t *tracker) tick(now time.Time) []check {
	var checks []check
	at := map[origin]int{}
	for _, key := range t.timers.pop(now) {
		e := t.entries[key]
		if e == nil {
			continue
		}
		t.lapse(key, e, now)
		for _, o := range e.origins() {
			w := e.words[o]
			if w.due.IsZero() || w.due.After(now) {
				continue
			}
			w.due, w.checking = time.Time{}, true
			i, ok := at[o]
			if !ok {
				i = len(checks)
				at[o] = i
				checks = append(checks, check{origin: o, node: key.Node})
			}
			checks[i].keys = append(checks[i].keys, key)
		}
	}
	return checks
}

// podsDueUntil reports whether tick has checks of pods after now, until then.
func (t *tracker) podsDueUntil(now, until time.Time) bool {
	if next, ok := t.next(); !ok || next.After(until) {
		return false
	}
	for _, e := range t.entries {
		for o, w := range e.words {
			if o.source != volume.SourceCSINodeStatus && w.due.After(now) && !w.due.After(until) {
				return true
			}
		}
	}
	return false
}

// next is when tick has something to do, false for never.
func (t *tracker) next() (time.Time, bool) { return t.timers.next() }

// verify takes the answer of a check: a word is confirmed when the live object
// says the same and the node's Lease is fresh.
func (t *tracker) verify(a answer, now time.Time) {
	live := map[volume.Key]volume.State{}
	for _, r := range mergeReadings(a.readings) {
		live[r.Key], _ = classify(r.Conditions)
	}
	for _, key := range a.check.keys {
		e := t.entries[key]
		if e == nil || e.words[a.check.origin] == nil || !e.words[a.check.origin].checking {
			continue // It said something else meanwhile.
		}
		w := e.words[a.check.origin]
		w.checking = false
		before := w.waiting
		switch {
		case a.err != nil:
			w.waiting = WaitingForRead
			t.again(key, w, now.Add(retryAfter(w.failures)))
			w.failures++
		case a.leaseStale:
			w.waiting = WaitingForLease
		case live[key] == w.state:
			w.waiting, w.failures, w.confirmedAt = "", 0, now
		default:
			// The live object is ahead of the informer: the streak is over.
			w.waiting, w.failures, w.since = "", 0, now
			t.again(key, w, now.Add(t.rules.confirmAfter))
		}
		if before != w.waiting || w.confirmed() {
			t.touch(key)
		}
	}
}

func (t *tracker) again(key volume.Key, w *word, at time.Time) {
	w.due = at
	t.timers.set(at, key)
}

func retryAfter(failures int) time.Duration {
	d := readRetryMin
	for ; failures > 0 && d < readRetryMax; failures-- {
		d *= 2
	}
	return min(d, readRetryMax)
}

// leaseRenewed has the words checked again that wait for the node's Lease.
func (t *tracker) leaseRenewed(node string, now time.Time) {
	for key := range t.byNode[node] {
		for _, w := range t.entries[key].words {
			if w.waiting == WaitingForLease && !w.checking && !w.gone && w.due.IsZero() {
				t.again(key, w, now)
			}
		}
	}
}
