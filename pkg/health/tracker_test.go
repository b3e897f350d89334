package health

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func inaccessible(key volume.Key, at time.Time) volume.Reading {
	return volume.Reading{Key: key, Started: at, Conditions: []volume.Condition{{Kind: volume.Inaccessible, Reason: "PathsLost"}}}
}

// confirmedPod is a tracker that has confirmed what one pod says of vol on n1.
func confirmedPod(t *testing.T, key volume.Key) (*tracker, origin, time.Time) {
	t.Helper()
	tr, o, now := newTracker(testRules), origin{volume.SourcePodStatus, "p"}, t0
	tr.attach(key)
	tr.tell(o, []volume.Reading{inaccessible(key, now)}, now)
	now = now.Add(testRules.confirmAfter)
	confirm(t, tr, key, now)
	return tr, o, now
}

func confirm(t *testing.T, tr *tracker, key volume.Key, now time.Time) {
	t.Helper()
	checks := tr.tick(now)
	if len(checks) != 1 {
		t.Fatalf("%d checks, want 1", len(checks))
	}
	tr.verify(answer{check: checks[0], readings: []volume.Reading{inaccessible(key, now)}}, now)
	tr.transitions()
	if v := tr.told[key]; !v.FailsFromNode() {
		t.Fatalf("not confirmed: %+v", v)
	}
}

func TestConfirmationIsDueAtExactlyItsTime(t *testing.T) {
	key := volume.Key{Handle: "vol", Node: "n1"}
	tr := newTracker(testRules)
	tr.tell(origin{volume.SourcePodStatus, "p"}, []volume.Reading{inaccessible(key, t0)}, t0)
	due := t0.Add(testRules.confirmAfter)
	if next, ok := tr.next(); !ok || !next.Equal(due) {
		t.Fatalf("next is %v, want %v", next, due)
	}
	if checks := tr.tick(due.Add(-1)); len(checks) != 0 {
		t.Fatalf("checked too early: %v", checks)
	}
	want := []check{{origin: origin{volume.SourcePodStatus, "p"}, node: "n1", keys: []volume.Key{key}}}
	if diff := cmp.Diff(want, tr.tick(due), cmp.AllowUnexported(check{}, origin{})); diff != "" {
		t.Fatal(diff)
	}
	if checks := tr.tick(due); len(checks) != 0 {
		t.Fatalf("checked twice: %v", checks)
	}
}

func TestOneCheckPerObject(t *testing.T) {
	tr, o := newTracker(testRules), origin{volume.SourceCSINodeStatus, "n1"}
	a, b := volume.Key{Handle: "a", Node: "n1"}, volume.Key{Handle: "b", Node: "n1"}
	tr.tell(o, []volume.Reading{inaccessible(b, t0), inaccessible(a, t0)}, t0)
	checks := tr.tick(t0.Add(time.Minute))
	if want := []check{{origin: o, node: "n1", keys: []volume.Key{a, b}}}; !cmp.Equal(want, checks, cmp.AllowUnexported(check{}, origin{})) {
		t.Fatalf("checks %v, want %v", checks, want)
	}
}

func TestAnswerThatComesTooLateIsIgnored(t *testing.T) {
	key, o := volume.Key{Handle: "vol", Node: "n1"}, origin{volume.SourcePodStatus, "p"}
	healthy := []volume.Reading{{Key: key, Started: t0}}
	for name, meanwhile := range map[string]func(*tracker, time.Time){
		"healthy":   func(tr *tracker, now time.Time) { tr.tell(o, healthy, now) },
		"gone":      func(tr *tracker, now time.Time) { tr.tell(o, nil, now) },
		"forgotten": func(tr *tracker, _ time.Time) { tr.forget("vol") },
		"flapped": func(tr *tracker, now time.Time) {
			tr.tell(o, healthy, now)
			tr.tell(o, []volume.Reading{inaccessible(key, now)}, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr, now := newTracker(testRules), t0.Add(testRules.confirmAfter)
			tr.tell(o, []volume.Reading{inaccessible(key, t0)}, t0)
			checks := tr.tick(now)
			meanwhile(tr, now)
			tr.verify(answer{check: checks[0], readings: []volume.Reading{inaccessible(key, now)}}, now)
			tr.transitions()
			if v := tr.told[key]; v.Confirmed {
				t.Fatalf("confirmed by an answer about something else: %+v", v)
			}
		})
	}
}

func TestFailedReadsBackOff(t *testing.T) {
	var got []time.Duration
	for failures := range 7 {
		got = append(got, retryAfter(failures))
	}
	s := time.Second
	if want := []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 30 * s, 30 * s}; !cmp.Equal(want, got) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

func TestSuspicionDoublesUpToItsLimit(t *testing.T) {
	key := volume.Key{Handle: "vol", Node: "n1"}
	tr, o, now := confirmedPod(t, key)
	var got []time.Duration
	for range 5 {
		tr.tell(o, nil, now)
		tr.detach(key, now)
		tr.transitions()
		v := tr.told[key]
		if !v.Suspect() {
			t.Fatalf("not suspect: %+v", v)
		}
		got = append(got, v.SuspectUntil.Sub(now))
		// It fails there again, a little later.
		tr.attach(key)
		now = now.Add(time.Second)
		tr.tell(o, []volume.Reading{inaccessible(key, now)}, now)
		now = now.Add(testRules.confirmAfter)
		confirm(t, tr, key, now)
	}
	m := time.Minute
	if want := []time.Duration{10 * m, 20 * m, 40 * m, 60 * m, 60 * m}; !cmp.Equal(want, got) {
		t.Fatalf("suspect for %v, want %v", got, want)
	}
	// An explicit healthy answer makes good for all of it.
	tr.tell(o, []volume.Reading{{Key: key, Started: now}}, now)
	tr.transitions()
	if v, ok := tr.told[key]; ok {
		t.Fatalf("not recovered: %+v", v)
	}
	tr.tell(o, []volume.Reading{inaccessible(key, now)}, now)
	now = now.Add(testRules.confirmAfter)
	confirm(t, tr, key, now)
	tr.tell(o, nil, now)
	tr.detach(key, now)
	tr.transitions()
	if got := tr.told[key].SuspectUntil.Sub(now); got != 10*m {
		t.Fatalf("after a recovery suspect for %v, want %v", got, 10*m)
	}
}

// The pod and the attachment may go in either order, and the pod's going may
// come late: one incident is one strike.
func TestOneIncidentIsOneStrike(t *testing.T) {
	key := volume.Key{Handle: "vol", Node: "n1"}
	for name, end := range map[string]func(*tracker, origin, time.Time){
		"pod first":        func(tr *tracker, o origin, now time.Time) { tr.tell(o, nil, now); tr.detach(key, now) },
		"attachment first": func(tr *tracker, o origin, now time.Time) { tr.detach(key, now); tr.tell(o, nil, now) },
		"twice": func(tr *tracker, o origin, now time.Time) {
			tr.tell(o, nil, now)
			tr.detach(key, now)
			tr.detach(key, now)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tr, o, now := confirmedPod(t, key)
			end(tr, o, now)
			tr.transitions()
			if got := tr.told[key].SuspectUntil.Sub(now); got != testRules.suspectFor {
				t.Fatalf("suspect for %v, want %v", got, testRules.suspectFor)
			}
		})
	}
}

// The kubelet says it twice, of the volume and of the storage behind it.
func TestTwoSpeakersAreOneStrike(t *testing.T) {
	key := volume.Key{Handle: "vol", Node: "n1"}
	tr, pod, now := confirmedPod(t, key)
	tr.tell(origin{volume.SourceCSINodeStatus, "n1"}, []volume.Reading{inaccessible(key, now)}, now)
	now = now.Add(testRules.confirmAfter)
	confirm(t, tr, key, now)
	tr.tell(pod, nil, now)
	tr.detach(key, now)
	tr.transitions()
	if got := tr.told[key].SuspectUntil.Sub(now); got != testRules.suspectFor {
		t.Fatalf("suspect for %v, want %v", got, testRules.suspectFor)
	}
}

// A pod that falls silent changes nothing, once or time and again. When it goes,
// what it said becomes a suspicion, though the volume is attached still: the
// next pod there speaks for itself.
func TestSuspicionBeginsWithThePodsEnd(t *testing.T) {
	key, other := volume.Key{Handle: "vol", Node: "n1"}, volume.Key{Handle: "other", Node: "n1"}
	tr, o, now := confirmedPod(t, key)
	for range 3 {
		now = now.Add(testRules.suspectFor / 4)
		tr.tell(o, []volume.Reading{{Key: other, Started: now}}, now)
		tr.tick(now)
		tr.transitions()
		if v := tr.told[key]; !v.FailsFromNode() || v.Suspect() || !tr.heard(o) {
			t.Fatalf("after the pod fell silent: %+v", v)
		}
	}
	tr.end(o, now)
	tr.transitions()
	if v := tr.told[key]; v.SuspectUntil.Sub(now) != testRules.suspectFor || tr.heard(o) {
		t.Fatalf("after the pod's end: %+v", v)
	}
	next := origin{volume.SourcePodStatus, "next"}
	tr.tell(next, []volume.Reading{inaccessible(key, now)}, now)
	tr.transitions()
	if v := tr.told[key]; !v.Suspect() {
		t.Fatalf("the next pod is taken at its first word: %+v", v)
	}
	confirm(t, tr, key, now.Add(testRules.confirmAfter))
	if v := tr.told[key]; v.Suspect() {
		t.Fatalf("the next pod is not believed: %+v", v)
	}
}

// A detach may take its time after the pod's end. The node is not trusted for as
// long from when the volume can be used elsewhere, and that is no second strike.
func TestSuspicionLastsFromTheDetach(t *testing.T) {
	key := volume.Key{Handle: "vol", Node: "n1"}
	tr, o, now := confirmedPod(t, key)
	tr.end(o, now)
	now = now.Add(testRules.suspectFor - time.Second)
	tr.tick(now)
	tr.detach(key, now)
	tr.transitions()
	if got := tr.told[key].SuspectUntil.Sub(now); got != testRules.suspectFor || tr.entries[key].strikes != 1 {
		t.Fatalf("suspect for %v after %d strikes", got, tr.entries[key].strikes)
	}
}

// What a silent pod said is forgotten in time, even if it goes on being told.
func TestSilenceEnds(t *testing.T) {
	key := volume.Key{Handle: "vol", Node: "n1"}
	tr, o, now := confirmedPod(t, key)
	for end := now.Add(testRules.suspectFor); !now.After(end); now = now.Add(time.Minute) {
		tr.tell(o, nil, now)
		tr.tick(now)
	}
	tr.transitions()
	if v := tr.told[key]; !v.Suspect() || tr.heard(o) {
		t.Fatalf("still %+v", v)
	}
}

func TestUnconfirmedLeavesNoSuspicion(t *testing.T) {
	key, o := volume.Key{Handle: "vol", Node: "n1"}, origin{volume.SourcePodStatus, "p"}
	tr := newTracker(testRules)
	tr.attach(key)
	tr.tell(o, []volume.Reading{inaccessible(key, t0)}, t0)
	tr.tell(o, nil, t0)
	tr.detach(key, t0)
	tr.transitions()
	if len(tr.told) != 0 {
		t.Fatalf("suspect without evidence: %+v", tr.told)
	}
}

func TestWorseStateStartsOver(t *testing.T) {
	key := volume.Key{Handle: "vol"}
	tr := newTracker(testRules)
	say := func(kind volume.ConditionKind) Status {
		tr.observePolled(volume.Reading{Key: key, Started: t0, Conditions: []volume.Condition{{Kind: kind}}}, t0)
		tr.transitions()
		return tr.told[key]
	}
	for range testRules.confirmations {
		say(volume.Degraded)
	}
	if v := say(volume.Inaccessible); v.State != volume.StateInaccessible || v.Confirmed {
		t.Fatalf("one answer made %+v", v)
	}
	say(volume.Inaccessible)
	if v := say(volume.Inaccessible); !v.Confirmed {
		t.Fatalf("three answers made %+v", v)
	}
}

func TestRememberedStatusIsNoAnswer(t *testing.T) {
	key := volume.Key{Handle: "vol"}
	asked := map[volume.Handle]struct{}{"vol": {}}
	tr := newTracker(testRules)
	tr.remember(key, []volume.Condition{{Kind: volume.Inaccessible, Reason: "R"}}, t0)
	for i := range testRules.confirmations {
		if tr.transitions(); tr.told[key].Confirmed {
			t.Fatalf("confirmed after %d answers", i)
		}
		tr.observeSweep(volume.Sweep{Complete: true, Readings: []volume.Reading{inaccessible(key, t0)}}, asked, t0)
	}
	if tr.transitions(); !tr.told[key].Confirmed {
		t.Fatal("not confirmed")
	}
	// What is remembered is over when the driver does not name it any more.
	tr = newTracker(testRules)
	tr.remember(key, []volume.Condition{{Kind: volume.Inaccessible, Reason: "R"}}, t0)
	for range 2 {
		tr.observeSweep(volume.Sweep{Complete: true, AbnormalOnly: true}, asked, t0)
	}
	if tr.transitions(); len(tr.told) != 0 {
		t.Fatalf("still %+v", tr.told)
	}
	if diff := cmp.Diff([]claimChange{{handle: "vol"}}, tr.claimChanges(), cmp.AllowUnexported(claimChange{})); diff != "" {
		t.Fatal(diff)
	}
}

func TestVolumesByWorstState(t *testing.T) {
	status := func(handle volume.Handle, node string, state volume.State) Status {
		return Status{Verdict: volume.Verdict{Key: volume.Key{Handle: handle, Node: node}, State: state}}
	}
	s := &snapshot{statuses: []Status{
		status("a", "", volume.StateDegraded),
		status("a", "n1", volume.StateInaccessible),
		status("b", "n1", volume.StateInaccessible),
		status("c", "", volume.StateDataLoss),
		status("c", "n1", volume.StateDegraded),
	}}
	want := map[volume.State]int{volume.StateInaccessible: 2, volume.StateDataLoss: 1}
	if diff := cmp.Diff(want, s.worstByState()); diff != "" {
		t.Fatal(diff)
	}
}
