package health

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Reasons of the events on a PersistentVolumeClaim; the names of the first two
// are those of external-health-monitor.
const (
	EventAbnormal = "VolumeConditionAbnormal"
	EventNormal   = "VolumeConditionNormal"
	// EventUnknown ends an adverse state that nobody has seen the end of: it is
	// only not said any more.
	EventUnknown = "VolumeConditionUnknown"
)

// notice is an event to be.
type notice struct {
	eventType, reason, message string
}

// announcer makes one event of each transition that people should know of. It
// remembers in memory what it last said of each key; no events are read.
type announcer struct {
	recorder record.EventRecorder
	said     map[volume.Key]announced
}

type announced struct {
	state     volume.State
	reason    string
	confirmed bool
	waiting   Waiting
}

func newAnnouncer(recorder record.EventRecorder) *announcer {
	return &announcer{recorder: recorder, said: map[volume.Key]announced{}}
}

// remember notes that an earlier process told people of the key.
func (a *announcer) remember(s Status) {
	a.said[s.Key] = announced{state: s.State, reason: s.Reason, confirmed: true}
}

// noticeOf decides whether a status is news, and what to say. An adverse state
// is told once it is confirmed, or once it is old enough and cannot be; the end
// of one that was told is told too.
func (a *announcer) noticeOf(change transition, at time.Time) (notice, bool) {
	s := change.to
	last, told := a.said[s.Key]
	if !s.Abnormal() {
		delete(a.said, s.Key)
		return ending(change, at), told
	}
	if s.Suspect() {
		return notice{}, false // Told already, and still so.
	}
	now := announced{state: s.State, reason: s.Reason, confirmed: s.Confirmed, waiting: s.Waiting}
	if !s.Confirmed && s.Waiting == "" || told && last == now {
		return notice{}, false
	}
	if told && last.confirmed && last.state == now.state && !now.confirmed {
		return notice{}, false // Worse was said of it already.
	}
	a.said[s.Key] = now
	return notice{v1.EventTypeWarning, EventAbnormal, sentence(s) + nextStep(s)}, true
}

// ending is how an adverse state ended. What a stored status said of it and does
// not say any more is no recovery: only somebody who calls the volume healthy has
// seen one.
func ending(change transition, at time.Time) notice {
	was, where := change.from, from(change.to.Key)
	switch {
	case was.Suspect() && !at.Before(was.SuspectUntil):
		return notice{v1.EventTypeNormal, EventUnknown, fmt.Sprintf(
			"The volume is no longer suspected to be %s%s: the time of suspicion is over, and nobody has looked there meanwhile",
			stateWord(was.State), where)}
	case change.to.Source == "" && !was.Source.Polled():
		return notice{v1.EventTypeNormal, EventUnknown, fmt.Sprintf(
			"Nobody says any more that the volume is %s%s: what said so is gone or silent, and nobody has seen it well",
			stateWord(was.State), where)}
	}
	return notice{v1.EventTypeNormal, EventNormal, "The volume is healthy again" + where}
}

// send puts the notice on each of the claims.
func (a *announcer) send(n notice, claims []*v1.PersistentVolumeClaim) {
	if a.recorder == nil {
		return
	}
	for _, claim := range claims {
		a.recorder.Event(claim, n.eventType, n.reason, truncate(n.message, maxMessageBytes))
	}
}

func from(key volume.Key) string {
	if key.Everywhere() {
		return ""
	}
	return " from node " + key.Node
}

func sentence(s Status) string {
	what := fmt.Sprintf("The volume is %s%s", stateWord(s.State), from(s.Key))
	if s.Key.Everywhere() && s.State == volume.StateInaccessible {
		what += " from every node"
	}
	if s.Reason != "" {
		what += " (" + s.Reason + ")"
	}
	if s.Message != "" {
		what += ": " + truncate(s.Message, maxMessageBytes/2)
	}
	return what + ". "
}

func stateWord(state volume.State) string {
	switch state {
	case volume.StateDataLoss:
		return "losing data"
	case volume.StateInaccessible:
		return "inaccessible"
	default:
		return "degraded"
	}
}

// nextStep says what follows, and what a person can do.
func nextStep(s Status) string {
	switch {
	case s.Waiting == WaitingForLease:
		return "Not confirmed, nothing is moved: the node's Lease is not being renewed, so this may be the last word of a dead kubelet; look at the node."
	case s.Waiting == WaitingForRead:
		return "Not confirmed, nothing is moved: it could not be read again from the API server; it is tried again."
	case s.State == volume.StateInaccessible && !s.Key.Everywhere():
		return "Pods that use it on this node may be moved; events on the pods tell."
	case s.State == volume.StateInaccessible:
		return "Moving pods cannot help, nothing is moved; look at the storage system."
	case s.State == volume.StateDataLoss:
		return "Nothing is moved; look at the storage system, and think of a restore."
	case hasKind(s.Conditions, volume.Abnormal):
		return "The driver does not tell what is wrong nor from where, nothing is moved; look at the storage system, or see --legacy-abnormal."
	default:
		return "Nothing is moved; look at the storage system."
	}
}
