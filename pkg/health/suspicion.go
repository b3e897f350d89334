package health

import (
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// attach notes that a VolumeAttachment for the key exists.
func (t *tracker) attach(key volume.Key) { t.attached[key] = struct{}{} }

// detach notes that the VolumeAttachment is gone, and with it whoever probed
// the key: a failing verdict becomes a suspicion, the rest is dropped. A pod
// that still exists speaks on until it goes.
func (t *tracker) detach(key volume.Key, now time.Time) {
	delete(t.attached, key)
	e := t.entries[key]
	if e == nil {
		return
	}
	for _, o := range e.origins() {
		w := e.words[o]
		if o.source == volume.SourcePodStatus && !w.gone {
			continue
		}
		t.suspect(key, o, now)
	}
	if s := e.suspicion; s != nil {
		// It may have begun with the end of a pod, long before.
		if until := now.Add(t.suspectTime(e.strikes)); until.After(s.until) {
			t.keep(key, s.word, s.source, s.began, until)
		}
	}
	t.touch(key)
}

// suspect ends a word that nobody will confirm or deny any more. A failing one
// leaves a suspicion behind, twice as long as the last.
func (t *tracker) suspect(key volume.Key, o origin, now time.Time) {
	e := t.entries[key]
	w := e.words[o]
	t.dropWord(key, o)
	if w == nil || !w.failing() || key.Everywhere() {
		return
	}
	// What was said before the suspicion began belongs to the same incident.
	began := now
	if e.suspicion == nil || w.since.After(e.suspicion.began) {
		e.strikes++
	} else {
		began = e.suspicion.began
	}
	until := now.Add(t.suspectTime(e.strikes))
	if e.suspicion != nil && e.suspicion.until.After(until) {
		until = e.suspicion.until
	}
	t.keep(key, *w, o.source, began, until)
}

// recall restores a suspicion of an earlier life, from the hold record of the
// node: without it a new leader would trust the node at once.
func (t *tracker) recall(key volume.Key, source volume.Source, heldAt, until time.Time) {
	e := t.entryOf(key)
	if e.suspicion != nil {
		return
	}
	e.strikes = max(e.strikes, 1)
	t.keep(key, word{
		state: volume.StateInaccessible,
		worst: volume.Condition{
			Kind:    volume.Inaccessible,
			Reason:  "NodeHeld",
			Message: "the node carries a hold for this volume from before this process led",
		},
		since:       heldAt,
		confirmedAt: heldAt,
	}, source, heldAt, until)
}

func (t *tracker) keep(key volume.Key, w word, source volume.Source, began, until time.Time) {
	e := t.entries[key]
	w.gone, w.waiting = true, ""
	e.suspicion = &suspicion{word: w, source: source, began: began, until: until}
	e.strikesUntil = until.Add(t.rules.suspectMax)
	t.timers.set(until, key)
	t.timers.set(e.strikesUntil, key)
	t.touch(key)
}

// suspectTime doubles with each strike after the first.
func (t *tracker) suspectTime(strikes int) time.Duration {
	d := t.rules.suspectFor
	for ; strikes > 1 && d < t.rules.suspectMax; strikes-- {
		d *= 2
	}
	return min(d, t.rules.suspectMax)
}

// lapse ends what has been remembered long enough.
func (t *tracker) lapse(key volume.Key, e *entry, now time.Time) {
	for _, o := range e.origins() {
		if w := e.words[o]; w.gone && !now.Before(w.goneUntil) {
			t.suspect(key, o, now)
			t.touch(key)
		}
	}
	if e.suspicion != nil && !now.Before(e.suspicion.until) {
		e.suspicion = nil
		t.touch(key)
	}
	if e.suspicion == nil && e.strikes > 0 && !now.Before(e.strikesUntil) {
		e.strikes, e.strikesUntil = 0, time.Time{}
		t.touch(key)
	}
}
