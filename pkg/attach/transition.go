package attach

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// State is what is known of one volume on one node.
type State string

const (
	// Absent: not published; unpublished with the driver's OK, or never tried.
	Absent State = "Absent"
	// Refused: tried from Absent, and the driver said that nothing happened. It
	// keeps nobody away, but is unpublished once before the finalizer goes.
	Refused State = "Refused"
	// Publishing: ControllerPublishVolume is in flight.
	Publishing State = "Publishing"
	// Attached: the last call that ended was a publish, and it succeeded.
	Attached State = "Attached"
	// Uncertain: a call ended without telling what it did.
	Uncertain State = "Uncertain"
	// Unpublishing: ControllerUnpublishVolume is in flight.
	Unpublishing State = "Unpublishing"
	// Fenced: unpublished with the driver's OK under a fence record. The node
	// may still have the volume mounted, so that it gets it back only after
	// live reads show neither record nor hold.
	Fenced State = "Fenced"
)

// states lists all of them, for metrics and tests.
var states = [...]State{Absent, Refused, Publishing, Attached, Uncertain, Unpublishing, Fenced}

// MayHold reports whether the node may have the volume, so that an exclusive
// volume must not be published elsewhere.
func (s State) MayHold() bool {
	return s == Publishing || s == Attached || s == Uncertain || s == Unpublishing
}

func (s State) inFlight() bool { return s == Publishing || s == Unpublishing }

// Ref is one VolumeAttachment of a key.
type Ref struct {
	UID types.UID
	// Deleting: it has a deletionTimestamp, or is gone.
	Deleting bool
	// Fenced: it carries a fence record.
	Fenced bool
	// Intent: it carries our finalizer, or may, since a write of it got no answer.
	Intent bool
	// Durable: it was seen with our finalizer.
	Durable bool
	// Committed: status.attached is true.
	Committed bool
	// Exclusive: its PersistentVolume may be on one node only. Another one of
	// the same volume may say otherwise.
	Exclusive bool
}

func (r Ref) wanted() bool { return !r.Deleting && !r.Fenced }

// Other is the same volume on another node.
type Other struct {
	Node      string
	State     State
	Exclusive bool
	// SameNodeID: it was published there by the ID that this key was published by,
	// as on a machine that was registered anew under another name.
	SameNodeID bool
	// Kept: somebody wants it there and says so durably.
	Kept bool
}

// heir reports whether the other node has what an unpublish of this one would take
// from it, and will have it unpublished itself.
func (o Other) heir() bool { return o.SameNodeID && o.Kept && o.State.MayHold() }

// View is all that a decision about one key may depend on.
type View struct {
	State State
	// Refs are the VolumeAttachments of the key, in a stable order.
	Refs []Ref
	// Others are the other nodes of the volume.
	Others []Other
	// Exclusive: somebody wants the volume on no other node.
	Exclusive bool
	// NodeIDChanged: the node has another ID now than it was published with.
	NodeIDChanged bool
	// Held: the Node's hold names this volume as fenced.
	Held bool
	// HoldOff: the key is a former leader's, whose calls may still be in flight.
	HoldOff bool
}

// Kind says what to do about a key.
type Kind string

const (
	// Nothing: what is there is what is wanted.
	Nothing Kind = "Nothing"
	// Publish: for the first time, the intent is still to be written.
	Publish Kind = "Publish"
	// Republish: not for the first time, so only after live reads.
	Republish Kind = "Republish"
	// Commit: the volume is there; a VolumeAttachment does not say so yet.
	Commit Kind = "Commit"
	// Unpublish: by the node ID that it was published with.
	Unpublish Kind = "Unpublish"
	// HandOver: no call, since the driver knows another node that has the volume by
	// the same ID; it is that node's from now on.
	HandOver Kind = "HandOver"
	// Release: take our finalizer off a VolumeAttachment that is being deleted.
	Release Kind = "Release"
	// AwaitCall: a call for the key is in flight.
	AwaitCall Kind = "AwaitCall"
	// AwaitDetach: Action.Node may have the exclusive volume.
	AwaitDetach Kind = "AwaitDetach"
	// AwaitNode: the Node's hold has to come off first.
	AwaitNode Kind = "AwaitNode"
	// AwaitRecord: a fence record keeps a VolumeAttachment from being attached,
	// and it is not being deleted.
	AwaitRecord Kind = "AwaitRecord"
	// AwaitHoldOff: calls of a former leader may be in flight.
	AwaitHoldOff Kind = "AwaitHoldOff"
)

// Detaches reports whether the work belongs to the detach lane.
func (k Kind) Detaches() bool { return k == Unpublish || k == HandOver || k == Release }

// Waits reports whether there is nothing to do but wait for a change.
func (k Kind) Waits() bool {
	switch k {
	case Nothing, AwaitCall, AwaitDetach, AwaitNode, AwaitRecord, AwaitHoldOff:
		return true
	default:
		return false
	}
}

// Action is the answer of Decide.
type Action struct {
	Kind Kind
	// UID names the VolumeAttachment that the action is for; empty where
	// nobody asks any more and the volume is still there.
	UID types.UID
	// Node is the other node of AwaitDetach.
	Node string
}

// Decide tells the next step for a key. It is pure, and it is the only place
// that allows a call to the driver.
func Decide(v View) Action {
	if v.State.inFlight() {
		return Action{Kind: AwaitCall}
	}
	var wanted, leaving []Ref
	keeper, fenced, kept, stripped := false, false, types.UID(""), types.UID("")
	for _, r := range v.Refs {
		switch {
		case r.wanted():
			wanted = append(wanted, r)
			keeper = keeper || r.Intent && r.Durable
			if r.Committed && !r.Intent {
				stripped = r.UID
			}
		case r.Deleting && r.Intent:
			leaving = append(leaving, r)
		case r.Fenced && !r.Deleting:
			fenced = true
			if !r.Committed {
				kept = r.UID
			}
		}
	}
	// One that is in use, and says no longer durably that it is: that comes first,
	// since for want of a finalizer nothing is unpublished under its pods.
	if stripped != "" && !keeper && v.State == Attached {
		return Action{Kind: Commit, UID: stripped}
	}
	if len(leaving) > 0 {
		return decideLeaving(v, leaving[0], keeper)
	}
	if len(wanted) > 0 {
		return decideWanted(v, wanted, keeper)
	}
	if kept != "" {
		return Action{Kind: AwaitRecord, UID: kept}
	}
	// A fenced VolumeAttachment that is not being deleted is Fence's to unpublish.
	if fenced || v.State == Absent || v.State == Fenced {
		return Action{Kind: Nothing}
	}
	return unpublish(v, "")
}

// decideLeaving is about a VolumeAttachment that is being deleted. Where
// another one wants the same volume on the same node and says so durably, it
// goes without a call.
func decideLeaving(v View, r Ref, keeper bool) Action {
	if keeper || v.State == Absent || v.State == Fenced {
		return Action{Kind: Release, UID: r.UID}
	}
	return unpublish(v, r.UID)
}

func unpublish(v View, uid types.UID) Action {
	if slices.ContainsFunc(v.Others, Other.heir) {
		return Action{Kind: HandOver, UID: uid}
	}
	if v.HoldOff {
		return Action{Kind: AwaitHoldOff, UID: uid}
	}
	return Action{Kind: Unpublish, UID: uid}
}

// decideWanted is about a key that somebody wants and nobody is leaving.
func decideWanted(v View, wanted []Ref, keeper bool) Action {
	first := wanted[0]
	if v.State == Attached {
		if v.NodeIDChanged && !keeper {
			return unpublish(v, first.UID)
		}
		return decideCommit(v, wanted)
	}
	if v.HoldOff {
		return Action{Kind: AwaitHoldOff, UID: first.UID}
	}
	if v.NodeIDChanged && v.State == Uncertain {
		return unpublish(v, first.UID)
	}
	if v.Held {
		return Action{Kind: AwaitNode, UID: first.UID}
	}
	if other, blocked := v.blocker(v.Exclusive); blocked {
		// Of two nodes that are both uncertain each would wait for the other
		// for ever. One that was never said to be attached is used by nobody,
		// and is made certain by an unpublish.
		if v.State == Uncertain && !slices.ContainsFunc(wanted, func(r Ref) bool { return r.Committed }) {
			return unpublish(v, first.UID)
		}
		return Action{Kind: AwaitDetach, UID: first.UID, Node: other}
	}
	if v.State == Absent {
		return Action{Kind: Publish, UID: first.UID}
	}
	return Action{Kind: Republish, UID: first.UID}
}

// decideCommit is about a key that is attached. That it is there for one
// VolumeAttachment does not make it right for another that wants it nowhere else.
func decideCommit(v View, wanted []Ref) Action {
	wait := Action{Kind: Nothing}
	for _, r := range wanted {
		other, blocked := v.blocker(r.Exclusive)
		switch {
		case r.Intent && r.Committed:
		case !r.Intent && v.Held:
			wait = Action{Kind: AwaitNode, UID: r.UID}
		case blocked:
			wait = Action{Kind: AwaitDetach, UID: r.UID, Node: other}
		default:
			return Action{Kind: Commit, UID: r.UID}
		}
	}
	return wait
}

// blocker finds another node that may have the volume, where only one may.
func (v View) blocker(exclusive bool) (node string, blocked bool) {
	for _, o := range v.Others {
		if o.State.MayHold() && (exclusive || o.Exclusive) {
			return o.Node, true
		}
	}
	return "", false
}

// AfterPublish is the state after a publish that began in state before.
func AfterPublish(before State, o volume.Outcome) State {
	switch {
	case o == volume.OutcomeOK:
		return Attached
	case !before.MayHold() && (o == volume.OutcomeFinal || o == volume.OutcomeRetry):
		return Refused
	default:
		return Uncertain
	}
}

// AfterUnpublish is the state after an unpublish that began in state before;
// fenced tells whether the key had a fence record. A failed one does not put a
// volume where it was not.
func AfterUnpublish(before State, o volume.Outcome, fenced bool) State {
	switch {
	case o == volume.OutcomeOK && fenced:
		return Fenced
	case o == volume.OutcomeOK:
		return Absent
	case before.MayHold():
		return Uncertain
	default:
		return before
	}
}

// AfterAbsence is the state once the driver has said twice in a row, each time
// asked after the last call for the key had ended, that the node does not have the
// volume. answered tells that this call was an unpublish to which the driver gave
// an answer, though an error, and that no publish before it is in doubt: then
// nothing is on its way any more that could put the volume there.
func AfterAbsence(before State, answered bool) State {
	switch {
	case before == Attached:
		return Uncertain
	case before == Uncertain && answered:
		return Absent
	default:
		return before
	}
}

// Inherit is the state after a VolumeAttachment was seen with our finalizer
// that this process did not write: a former leader's or another process's. Of one
// that is being deleted that one may have begun to unpublish the volume.
func Inherit(before State, committed, deleting bool) State {
	switch {
	case before == Attached && deleting:
		return Uncertain
	case before.MayHold():
		return before
	case committed && !deleting:
		return Attached
	default:
		return Uncertain
	}
}
