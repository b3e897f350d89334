package health

import (
	"slices"
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// rules are the numbers that the tracker goes by; see Config.
type rules struct {
	confirmations int
	confirmAfter  time.Duration
	suspectFor    time.Duration
	suspectMax    time.Duration
}

// transition is a change of what is believed of one key.
type transition struct {
	from, to Status
}

// tracker is the state machine: words in, verdicts out. It has no clock, no
// client and no goroutine; the caller passes the time, which must not go back.
type tracker struct {
	rules   rules
	entries map[volume.Key]*entry
	// byOrigin lists the keys that a stored status speaks of, and byNode those
	// with an entry.
	byOrigin map[origin]map[volume.Key]struct{}
	byNode   map[string]map[volume.Key]struct{}
	// attached are the keys with a VolumeAttachment.
	attached map[volume.Key]struct{}
	timers   timers

	// told is what transitions have been made of; dirty are the keys to
	// compare with it.
	told  map[volume.Key]Status
	dirty map[volume.Key]struct{}
	// claims are the volumes of which the controller plugin says something else
	// than before.
	claims map[volume.Handle]struct{}
}

func newTracker(r rules) *tracker {
	return &tracker{
		rules:    r,
		entries:  map[volume.Key]*entry{},
		byOrigin: map[origin]map[volume.Key]struct{}{},
		byNode:   map[string]map[volume.Key]struct{}{},
		attached: map[volume.Key]struct{}{},
		told:     map[volume.Key]Status{},
		dirty:    map[volume.Key]struct{}{},
		claims:   map[volume.Handle]struct{}{},
	}
}

// observeSweep takes one pass over the driver's volumes. asked are the volumes
// that the pass was about; others are somebody else's and ignored.
func (t *tracker) observeSweep(s volume.Sweep, asked map[volume.Handle]struct{}, now time.Time) {
	named := map[volume.Key]struct{}{}
	for _, r := range mergeReadings(s.Readings) {
		if _, ok := asked[r.Key.Handle]; !ok {
			continue
		}
		named[r.Key] = struct{}{}
		t.observePolled(r, now)
	}
	if !s.Complete || !s.AbnormalOnly {
		return
	}
	for key, e := range t.entries {
		w := e.words[origin{source: volume.SourceController}]
		_, isNamed := named[key]
		_, isAsked := asked[key.Handle]
		if w == nil || isNamed || !isAsked {
			continue
		}
		if w.miss() {
			delete(e.words, origin{source: volume.SourceController})
			t.claimChanged(key)
		}
		t.touch(key)
	}
}

// observePolled takes one answer of the controller plugin.
func (t *tracker) observePolled(r volume.Reading, now time.Time) {
	o := origin{source: volume.SourceController}
	state, worst := classify(r.Conditions)
	e := t.entries[r.Key]
	if state == volume.StateHealthy {
		if e == nil {
			return
		}
		if e.words[o] != nil {
			delete(e.words, o)
			t.claimChanged(r.Key)
		}
		t.clear(r.Key, o.source)
		return
	}
	e = t.entryOf(r.Key)
	w := e.words[o]
	if w == nil {
		w = &word{}
		e.words[o] = w
	}
	if !slices.Equal(w.conditions, r.Conditions) {
		t.claimChanged(r.Key)
	}
	w.say(state, worst, r.Conditions, r.Started)
	w.count(t.rules.confirmations, r.Started, now)
	t.touch(r.Key)
}

// remember takes what the controller plugin said in an earlier life, from the
// status of the claim. It counts as no answer.
func (t *tracker) remember(key volume.Key, conditions []volume.Condition, now time.Time) {
	state, worst := classify(conditions)
	o := origin{source: volume.SourceController}
	e := t.entryOf(key)
	if state == volume.StateHealthy || e.words[o] != nil {
		return
	}
	e.words[o] = &word{state: state, worst: worst, conditions: conditions, since: now}
	t.touch(key)
}

// tell takes all that one stored status says now. What it said before and does
// not say any more is withdrawn: an absence, which changes nothing that is
// confirmed.
func (t *tracker) tell(o origin, readings []volume.Reading, now time.Time) {
	said := map[volume.Key]struct{}{}
	for _, r := range mergeReadings(readings) {
		said[r.Key] = struct{}{}
		t.observeStored(o, r)
	}
	for key := range t.byOrigin[o] {
		if _, ok := said[key]; ok {
			continue
		}
		t.withdraw(key, o, now)
		if t.entries[key] != nil && t.entries[key].words[o] != nil {
			said[key] = struct{}{} // Kept, so it is still the object's.
		}
	}
	if len(said) == 0 {
		delete(t.byOrigin, o)
		return
	}
	t.byOrigin[o] = said
}

// end takes that an object is no more. Nobody else speaks for what it said, so a
// failing word becomes a suspicion at once, though the volume is still attached:
// it holds for the node, and not for whoever uses the volume there next.
func (t *tracker) end(o origin, now time.Time) {
	t.tell(o, nil, now)
	for key := range t.byOrigin[o] {
		if t.entries[key].words[o].failing() {
			t.suspect(key, o, now)
			t.touch(key)
		}
	}
}

// heard reports whether anything counts that the object said.
func (t *tracker) heard(o origin) bool { return len(t.byOrigin[o]) > 0 }

// dropWord removes what one origin says of a key.
func (t *tracker) dropWord(key volume.Key, o origin) {
	delete(t.entries[key].words, o)
	delete(t.byOrigin[o], key)
	if len(t.byOrigin[o]) == 0 {
		delete(t.byOrigin, o)
	}
}

// observeStored takes one stored answer. The same answer again is no news: a
// status that nobody rewrote proves nothing about today.
func (t *tracker) observeStored(o origin, r volume.Reading) {
	state, worst := classify(r.Conditions)
	e := t.entryOf(r.Key)
	w := e.words[o]
	if w == nil {
		w = &word{}
		e.words[o] = w
	}
	changed := w.say(state, worst, r.Conditions, r.Started)
	switch {
	case !changed:
	case state == volume.StateHealthy:
		t.clear(r.Key, o.source)
	default:
		w.due = r.Started.Add(t.rules.confirmAfter)
		t.timers.set(w.due, r.Key)
	}
	t.touch(r.Key)
}

// withdraw notes that an object does not speak of the key any more. Without a
// live read it can never be confirmed, so what is not confirmed is dropped.
func (t *tracker) withdraw(key volume.Key, o origin, now time.Time) {
	e := t.entries[key]
	if e == nil || e.words[o] == nil {
		return
	}
	w := e.words[o]
	_, attached := t.attached[key]
	switch {
	case w.gone:
		return // Since before.
	case w.healthy() || !w.confirmed():
		t.dropWord(key, o)
	case !attached || e.spokenWell(o.source):
		t.suspect(key, o, now)
	default:
		w.gone, w.due, w.checking = true, time.Time{}, false
		// Long enough for a walk to end that was begun on this word.
		w.goneUntil = now.Add(t.rules.suspectFor)
		t.timers.set(w.goneUntil, key)
	}
	t.touch(key)
}

// spokenWell reports whether another object of the source calls the key healthy.
func (e *entry) spokenWell(source volume.Source) bool {
	for o, w := range e.words {
		if o.source == source && w.healthy() {
			return true
		}
	}
	return false
}

// clear takes an explicit healthy answer of a source: what the source is
// remembered for is over.
func (t *tracker) clear(key volume.Key, source volume.Source) {
	e := t.entries[key]
	if e == nil {
		return
	}
	for o, w := range e.words {
		if o.source == source && w.gone {
			t.dropWord(key, o)
		}
	}
	if e.suspicion != nil && e.suspicion.source == source {
		e.suspicion = nil
	}
	if e.suspicion == nil {
		e.strikes, e.strikesUntil = 0, time.Time{}
	}
	t.touch(key)
}

// forget drops all that is known of a volume which is no more.
func (t *tracker) forget(handle volume.Handle) {
	for key, e := range t.entries {
		if key.Handle != handle {
			continue
		}
		for o := range e.words {
			t.dropWord(key, o)
		}
		*e = entry{words: map[origin]*word{}}
		t.touch(key)
	}
}

// knows reports whether anything was heard of the key.
func (t *tracker) knows(key volume.Key) bool { return t.entries[key] != nil }

// suspected lists the volumes that the node is suspected of by a source.
func (t *tracker) suspected(node string, source volume.Source) []volume.Handle {
	var handles []volume.Handle
	for key := range t.byNode[node] {
		if s := t.entries[key].suspicion; s != nil && s.source == source {
			handles = append(handles, key.Handle)
		}
	}
	slices.Sort(handles)
	return handles
}

func (t *tracker) entryOf(key volume.Key) *entry {
	e := t.entries[key]
	if e == nil {
		e = &entry{words: map[origin]*word{}}
		t.entries[key] = e
		if t.byNode[key.Node] == nil {
			t.byNode[key.Node] = map[volume.Key]struct{}{}
		}
		t.byNode[key.Node][key] = struct{}{}
	}
	return e
}

func (t *tracker) touch(key volume.Key) { t.dirty[key] = struct{}{} }

// claimChanged notes that the claims of the volume may have to say something
// else: the controller plugin does, or the volume has another claim.
func (t *tracker) claimChanged(key volume.Key) {
	if key.Everywhere() {
		t.claims[key.Handle] = struct{}{}
	}
}
