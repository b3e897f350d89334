package attach

import (
	"fmt"
	"testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// place is one node in the small world: what the API says, what the ledger
// says, and what is true.
type place struct {
	exists, deleting, fenced, intent, committed bool
	state                                       State
	there                                       bool
}

// smallWorld is one volume and two nodes. It is comparable, so that the search
// knows where it has been.
type smallWorld [2]place

// rules say what the volume and the two nodes are like.
type rules struct {
	// exclusive: the volume may be on one node only.
	exclusive bool
	// sameID: the nodes are one machine under two names, so that what is on one is
	// on the other.
	sameID bool
}

func (w smallWorld) view(n int, r rules) View {
	p, o, exclusive := w[n], w[1-n], r.exclusive
	v := View{State: p.state, Exclusive: exclusive, Others: []Other{{
		Node: fmt.Sprint(1 - n), State: o.state, Exclusive: exclusive,
		SameNodeID: r.sameID, Kept: o.exists && !o.deleting && !o.fenced && o.intent,
	}}}
	if p.exists {
		v.Refs = []Ref{{UID: "u", Deleting: p.deleting, Fenced: p.fenced, Intent: p.intent, Durable: p.intent, Committed: p.committed, Exclusive: exclusive}}
	}
	return v
}

// reply is what the driver does with a call.
type reply struct {
	name    string
	outcome volume.Outcome
	effect  bool
}

var replies = []reply{
	{"ok", volume.OutcomeOK, true},
	{"timeout, done", volume.OutcomeUncertain, true},
	{"timeout, not done", volume.OutcomeUncertain, false},
	{"refused", volume.OutcomeFinal, false},
	{"retry", volume.OutcomeRetry, false},
}

type successor struct {
	what string
	w    smallWorld
}

// restart is a new process: the ledger from the API alone.
func (w smallWorld) restart() smallWorld {
	for n := range w {
		w[n].state = Absent
		if w[n].exists && w[n].intent {
			w[n].state = Inherit(Absent, w[n].committed, w[n].deleting)
		}
	}
	return w
}

// users lists what people, kube-controller-manager and hacontroller may do.
func (w smallWorld) users() []successor {
	var out []successor
	for n := range w {
		p := w[n]
		next := w
		switch {
		case !p.exists:
			next[n] = place{exists: true, state: p.state, there: p.there}
			out = append(out, successor{fmt.Sprintf("create %d", n), next})
		case !p.deleting:
			next[n].deleting = true
			if !p.intent {
				next[n] = place{state: p.state, there: p.there}
			}
			out = append(out, successor{fmt.Sprintf("delete %d", n), next})
			if !p.fenced {
				next = w
				next[n].fenced = true
				out = append(out, successor{fmt.Sprintf("record %d", n), next})
			}
		}
	}
	return append(out, successor{"restart", w.restart()})
}

// absences are lists of an honest driver, twice in a row.
func (w smallWorld) absences() []successor {
	var out []successor
	for n := range w {
		for _, answered := range []bool{true, false} {
			if next := w; !w[n].there {
				next[n].state = AfterAbsence(w[n].state, answered)
				out = append(out, successor{fmt.Sprintf("absent %d", n), next})
			}
		}
	}
	return out
}

// unpublish lists what an unpublish on n may end in, a crash after it included.
func (w smallWorld) unpublish(n int, fenced, sameID bool) []successor {
	var out []successor
	for _, r := range replies {
		next := w
		next.put(n, w[n].there && !r.effect, sameID)
		crashed := next.restart()
		next[n].state = AfterUnpublish(w[n].state, r.outcome, fenced)
		if sameID && next[1-n].state == Attached {
			next[1-n].state = Uncertain
		}
		out = append(out, successor{fmt.Sprintf("unpublish %d %s", n, r.name), next},
			successor{fmt.Sprintf("unpublish %d %s, crash", n, r.name), crashed})
	}
	return out
}

// put makes the volume be on n, or not.
func (w *smallWorld) put(n int, there, sameID bool) {
	w[n].there = there
	if sameID {
		w[1-n].there = there
	}
}

// step lists what the controller's next step on n may end in, and fails the
// test where a step is taken that must never be.
func (w smallWorld) step(t *testing.T, n int, rules rules) []successor {
	t.Helper()
	a := Decide(w.view(n, rules))
	p, o := w[n], w[1-n]
	inUse := rules.sameID && o.exists && !o.deleting && !o.fenced && o.committed && o.state.MayHold()
	next := w
	switch a.Kind {
	case Publish, Republish:
		if rules.exclusive && o.there {
			t.Fatalf("W1: %s on %d while the volume is on the other node: %+v", a.Kind, n, w)
		}
		if p.fenced || p.deleting || !p.exists {
			t.Fatalf("%s for nobody or against a record: %+v", a.Kind, w)
		}
		if p.state == Fenced && a.Kind == Publish {
			t.Fatalf("publish of a fenced key without live reads: %+v", w)
		}
		next[n].intent = true
		out := []successor{{fmt.Sprintf("intent %d, crash", n), next.restart()}}
		for _, r := range replies {
			done := next
			done.put(n, p.there || r.effect, rules.sameID)
			out = append(out, successor{fmt.Sprintf("publish %d %s, crash", n, r.name), done.restart()})
			done[n].state = AfterPublish(p.state, r.outcome)
			out = append(out, successor{fmt.Sprintf("publish %d %s", n, r.name), done})
		}
		return out
	case Commit:
		if !p.there {
			t.Fatalf("commit of what is not there: %+v", w)
		}
		next[n].intent, next[n].committed = true, true
		return []successor{{fmt.Sprintf("commit %d", n), next}}
	case Unpublish:
		if p.exists && !p.deleting && (p.committed || !w[1-n].state.MayHold()) {
			t.Fatalf("I6: unpublish under a live VolumeAttachment: %+v", w)
		}
		if inUse {
			t.Fatalf("I6: unpublish under the live VolumeAttachment of the same machine: %+v", w)
		}
		return w.unpublish(n, p.fenced, rules.sameID)
	case HandOver:
		next[n].state = Absent
		return []successor{{fmt.Sprintf("hand over %d", n), next}}
	case Release:
		if keptByOther := rules.sameID && o.exists && o.intent; p.there && !keptByOther {
			t.Fatalf("I2: the finalizer goes while the volume is there: %+v", w)
		}
		next[n] = place{state: p.state, there: p.there}
		return []successor{{fmt.Sprintf("release %d", n), next}}
	default:
		return nil
	}
}

// fence lists what a Fence on n may end in.
func (w smallWorld) fence(n int, sameID bool) []successor {
	if p := w[n]; !p.exists || !p.fenced || p.deleting || p.state == Fenced {
		return nil
	}
	return w.unpublish(n, true, sameID)
}

// settle lets a healthy driver, and hacontroller, finish what there is to do.
func (w smallWorld) settle(t *testing.T, r rules) smallWorld {
	t.Helper()
	for range 20 {
		moved := false
		for n := range w {
			for _, s := range append(w.step(t, n, r), w.fence(n, r.sameID)...) {
				if s.what == fmt.Sprintf("publish %d ok", n) || s.what == fmt.Sprintf("unpublish %d ok", n) || s.what == fmt.Sprintf("hand over %d", n) ||
					s.what == fmt.Sprintf("commit %d", n) || s.what == fmt.Sprintf("release %d", n) {
					w, moved = s.w, true
					break
				}
			}
		}
		// Only the driver's list tells that a fence under another name, followed by
		// a crash, has taken the volume.
		for n := range w {
			if r.sameID && w[n].state == Attached && !w[n].there {
				w[n].state, moved = AfterAbsence(Attached, false), true
			}
		}
		if !moved {
			return w
		}
	}
	t.Fatalf("never at rest: %+v", w)
	return w
}

// checkRest asserts what holds once nothing is left to do.
func checkRest(t *testing.T, from, w smallWorld, r rules) {
	t.Helper()
	waiting := 0
	for n := range w {
		p := w[n]
		switch {
		case p.exists && p.deleting:
			t.Fatalf("a deleted VolumeAttachment stays:\nfrom %+v\nto   %+v", from, w)
		case p.exists && !p.fenced && !p.there:
			waiting++
			if o := w[1-n]; !r.exclusive || !o.there {
				t.Fatalf("wanted, nobody in the way, and not attached:\nfrom %+v\nto   %+v", from, w)
			}
		case p.exists && !p.fenced && !p.committed:
			t.Fatalf("attached and not said so:\nfrom %+v\nto   %+v", from, w)
		case !p.exists && p.there && (!r.sameID || !w[1-n].exists):
			t.Fatalf("leaked:\nfrom %+v\nto   %+v", from, w)
		}
	}
	if waiting == 2 {
		t.Fatalf("both wait for each other: %+v", w)
	}
}

// TestTransitionsExhaustively walks every world that two nodes can get into by
// any order of creations, deletions, fence records, fences, crashes and replies
// of the driver, and checks each step and where each world comes to rest.
func TestTransitionsExhaustively(t *testing.T) {
	for _, r := range []rules{{exclusive: true}, {}, {sameID: true}} {
		t.Run(fmt.Sprintf("exclusive=%v,sameID=%v", r.exclusive, r.sameID), func(t *testing.T) {
			start := smallWorld{{state: Absent}, {state: Absent}}
			seen := map[smallWorld]bool{start: true}
			queue := []smallWorld{start}
			for len(queue) > 0 {
				w := queue[0]
				queue = queue[1:]
				if r.exclusive && w[0].there && w[1].there {
					t.Fatalf("W1: on both nodes: %+v", w)
				}
				checkRest(t, w, w.settle(t, r), r)
				next := append(w.users(), w.absences()...)
				for n := range w {
					next = append(next, w.step(t, n, r)...)
					next = append(next, w.fence(n, r.sameID)...)
				}
				for _, s := range next {
					if !seen[s.w] {
						seen[s.w] = true
						queue = append(queue, s.w)
					}
				}
			}
			t.Logf("%d worlds", len(seen))
			if len(seen) < 500 {
				t.Errorf("only %d worlds were reached: the search is broken", len(seen))
			}
		})
	}
}

func TestDecide(t *testing.T) {
	live := Ref{UID: "a", Intent: true, Durable: true, Committed: true}
	fresh := Ref{UID: "b"}
	leaving := Ref{UID: "c", Intent: true, Deleting: true}
	fenced := Ref{UID: "d", Intent: true, Fenced: true, Committed: true}
	stripped := Ref{UID: "i", Committed: true}
	alone := Ref{UID: "f", Exclusive: true}
	sharing := func(s State) []Other { return []Other{{Node: "n2", State: s}} }
	machine := func(s State, kept bool) []Other { return []Other{{Node: "n2", State: s, SameNodeID: true, Kept: kept}} }
	elsewhere := func(s State) []Other { return []Other{{Node: "n2", State: s, Exclusive: true}} }
	for _, tc := range []struct {
		name string
		view View
		want Action
	}{
		{"fresh", View{State: Absent, Refs: []Ref{fresh}}, Action{Kind: Publish, UID: "b"}},
		{"at rest", View{State: Attached, Refs: []Ref{live}}, Action{Kind: Nothing}},
		{"uncertain is tried again after live reads", View{State: Uncertain, Refs: []Ref{live}}, Action{Kind: Republish, UID: "a"}},
		{"refused is tried again after live reads", View{State: Refused, Refs: []Ref{live}}, Action{Kind: Republish, UID: "a"}},
		{"a second VolumeAttachment is adopted", View{State: Attached, Refs: []Ref{live, fresh}}, Action{Kind: Commit, UID: "b"}},
		{"the last one leaves by a call", View{State: Attached, Refs: []Ref{leaving}}, Action{Kind: Unpublish, UID: "c"}},
		{"one of two leaves without a call", View{State: Attached, Refs: []Ref{live, leaving}}, Action{Kind: Release, UID: "c"}},
		{"one that has said nothing durable keeps nothing", View{State: Attached, Refs: []Ref{fresh, leaving}}, Action{Kind: Unpublish, UID: "c"}},
		{"one in use without our finalizer gets it again", View{State: Attached, Refs: []Ref{stripped}}, Action{Kind: Commit, UID: "i"}},
		{"even under another ID", View{State: Attached, NodeIDChanged: true, Refs: []Ref{stripped}}, Action{Kind: Commit, UID: "i"}},
		{"even before another one goes", View{State: Attached, Refs: []Ref{leaving, stripped}}, Action{Kind: Commit, UID: "i"}},
		{"refused is unpublished before it is released", View{State: Refused, Refs: []Ref{leaving}}, Action{Kind: Unpublish, UID: "c"}},
		{"unpublished is released", View{State: Absent, Refs: []Ref{leaving}}, Action{Kind: Release, UID: "c"}},
		{"an acknowledged fence needs no second call", View{State: Fenced, Refs: []Ref{leaving}}, Action{Kind: Release, UID: "c"}},
		{"a fenced one is left to Fence", View{State: Attached, Refs: []Ref{fenced}}, Action{Kind: Nothing}},
		{"a record on one that was never attached", View{State: Absent, Refs: []Ref{{UID: "g", Fenced: true}}}, Action{Kind: AwaitRecord, UID: "g"}},
		{"a record on one that nobody said was attached", View{State: Uncertain, Refs: []Ref{{UID: "g", Intent: true, Fenced: true}}}, Action{Kind: AwaitRecord, UID: "g"}},
		{"fenced with a new VolumeAttachment", View{State: Fenced, Refs: []Ref{fresh}}, Action{Kind: Republish, UID: "b"}},
		{"stripped by hand", View{State: Attached}, Action{Kind: Unpublish}},
		{"another node is attached", View{State: Absent, Exclusive: true, Refs: []Ref{fresh}, Others: elsewhere(Attached)}, Action{Kind: AwaitDetach, UID: "b", Node: "n2"}},
		{"another node is uncertain", View{State: Absent, Exclusive: true, Refs: []Ref{fresh}, Others: elsewhere(Uncertain)}, Action{Kind: AwaitDetach, UID: "b", Node: "n2"}},
		{"both uncertain: one gives way", View{State: Uncertain, Exclusive: true, Refs: []Ref{{UID: "e", Intent: true}}, Others: elsewhere(Uncertain)}, Action{Kind: Unpublish, UID: "e"}},
		{"both uncertain: not one that may be in use", View{State: Uncertain, Exclusive: true, Refs: []Ref{live}, Others: elsewhere(Uncertain)}, Action{Kind: AwaitDetach, UID: "a", Node: "n2"}},
		{"another node was refused", View{State: Absent, Exclusive: true, Refs: []Ref{fresh}, Others: elsewhere(Refused)}, Action{Kind: Publish, UID: "b"}},
		{"another node is fenced", View{State: Absent, Exclusive: true, Refs: []Ref{fresh}, Others: elsewhere(Fenced)}, Action{Kind: Publish, UID: "b"}},
		{"shared here, exclusive there", View{State: Absent, Refs: []Ref{fresh}, Others: elsewhere(Attached)}, Action{Kind: AwaitDetach, UID: "b", Node: "n2"}},
		{"another node has it, for a new one that shares", View{State: Attached, Exclusive: true, Refs: []Ref{alone, fresh}, Others: sharing(Attached)}, Action{Kind: Commit, UID: "b"}},
		{"another node has it, for a new one that does not share", View{State: Attached, Exclusive: true, Refs: []Ref{live, alone}, Others: sharing(Attached)}, Action{Kind: AwaitDetach, UID: "f", Node: "n2"}},
		{"nobody else has it, for a new one that does not share", View{State: Attached, Exclusive: true, Refs: []Ref{live, alone}, Others: sharing(Refused)}, Action{Kind: Commit, UID: "f"}},
		{"held", View{State: Absent, Held: true, Refs: []Ref{fresh}}, Action{Kind: AwaitNode, UID: "b"}},
		{"held and there, for a new one", View{State: Attached, Held: true, Refs: []Ref{fresh}}, Action{Kind: AwaitNode, UID: "b"}},
		{"a hold does not stop a detach", View{State: Attached, Held: true, Refs: []Ref{leaving}}, Action{Kind: Unpublish, UID: "c"}},
		{"hold-off stops a publish", View{State: Uncertain, HoldOff: true, Refs: []Ref{live}}, Action{Kind: AwaitHoldOff, UID: "a"}},
		{"hold-off stops an unpublish", View{State: Attached, HoldOff: true, Refs: []Ref{leaving}}, Action{Kind: AwaitHoldOff, UID: "c"}},
		{"hold-off stops an orphan's unpublish", View{State: Attached, HoldOff: true}, Action{Kind: AwaitHoldOff}},
		{"in flight", View{State: Publishing, Refs: []Ref{leaving}}, Action{Kind: AwaitCall}},
		{"uncertain under another ID", View{State: Uncertain, NodeIDChanged: true, Refs: []Ref{live}}, Action{Kind: Unpublish, UID: "a"}},
		{"attached under another ID, in use", View{State: Attached, NodeIDChanged: true, Refs: []Ref{live}}, Action{Kind: Nothing}},
		{"attached under another ID, for a new one", View{State: Attached, NodeIDChanged: true, Refs: []Ref{fresh}}, Action{Kind: Unpublish, UID: "b"}},
		{"the machine has it under another name", View{State: Attached, Refs: []Ref{leaving}, Others: machine(Attached, true)}, Action{Kind: HandOver, UID: "c"}},
		{"the machine had it under another name", View{State: Attached, Refs: []Ref{leaving}, Others: machine(Refused, true)}, Action{Kind: Unpublish, UID: "c"}},
		{"the machine has it under another name that nobody keeps", View{State: Attached, Refs: []Ref{leaving}, Others: machine(Attached, false)}, Action{Kind: Unpublish, UID: "c"}},
		{"nothing at all", View{State: Absent}, Action{Kind: Nothing}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Decide(tc.view); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestOutcomes(t *testing.T) {
	for _, tc := range []struct{ got, want State }{
		{AfterPublish(Uncertain, volume.OutcomeFinal), Uncertain},
		{AfterPublish(Absent, volume.OutcomeFinal), Refused},
		{AfterPublish(Fenced, volume.OutcomeRetry), Refused},
		{AfterPublish(Refused, volume.OutcomeUncertain), Uncertain},
		{AfterPublish(Absent, volume.Outcome("unheard of")), Uncertain},
		{AfterUnpublish(Attached, volume.OutcomeFinal, false), Uncertain},
		{AfterUnpublish(Refused, volume.OutcomeFinal, false), Refused},
		{AfterUnpublish(Uncertain, volume.OutcomeOK, true), Fenced},
		{AfterAbsence(Attached, true), Uncertain},
		{AfterAbsence(Uncertain, true), Absent},
		{AfterAbsence(Uncertain, false), Uncertain},
		{AfterAbsence(Fenced, true), Fenced},
		{AfterAbsence(Refused, true), Refused},
		{Inherit(Fenced, false, false), Uncertain},
		{Inherit(Attached, false, false), Attached},
		{Inherit(Attached, true, true), Uncertain},
		{Inherit(Absent, true, false), Attached},
		{Inherit(Absent, true, true), Uncertain},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}
