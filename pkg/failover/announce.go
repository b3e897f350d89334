package failover

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// Reasons of events.
const (
	// EventRefused on a pod: its volume fails and it is not moved; the message
	// says why and what to do. On a VolumeAttachment, where there is no pod that
	// could be told: Kubernetes does not detach the volume.
	EventRefused = "FailoverRefused"
	// EventWouldMove on a pod: enforce would move it.
	EventWouldMove = "FailoverWouldMove"
	// EventDelayed on a pod: it failed over too often of late.
	EventDelayed = "FailoverDelayed"
	// EventBreakerOpen on the CSIDriver: too many nodes fail, nothing moves.
	EventBreakerOpen = "FailoverBreakerOpen"
	// EventBreakerClosed on the CSIDriver: it has been calm for long enough.
	EventBreakerClosed = "FailoverBreakerClosed"
)

const (
	// announcementKept is how long it is remembered what a pod was told after no
	// decision concerns it any more: a volume that comes and goes is no news.
	announcementKept = 5 * time.Minute
	// announceAgain is when a pod is told the same once more. The API server
	// keeps events for an hour unless told otherwise.
	announceAgain = 30 * time.Minute
)

// announcer tells an object's owner once what is decided, until it changes.
type announcer struct {
	recorder record.EventRecorder
	told     map[types.UID]announcement
	// open is what was last said of the breaker.
	open bool
}

type announcement struct {
	key      string
	at, seen time.Time
}

func newAnnouncer(recorder record.EventRecorder) *announcer {
	return &announcer{recorder: recorder, told: map[types.UID]announcement{}}
}

// announce emits the events that the decision calls for.
func (n *announcer) announce(mode Mode, d Decision, now time.Time) {
	if n.recorder == nil {
		return
	}
	for uid, told := range n.told {
		if now.Sub(told.seen) > announcementKept {
			delete(n.told, uid)
		}
	}
	for _, a := range d.Answers {
		if !a.Lead {
			continue
		}
		event, message := eventOf(mode, a)
		key := ""
		if event != "" {
			key = event + "/" + string(a.Primary().Code)
		}
		for _, object := range subjects(a) {
			told := n.told[object.UID]
			news := key != told.key || now.Sub(told.at) >= announceAgain
			if news {
				told = announcement{key: key, at: now}
			}
			told.seen = now
			n.told[object.UID] = told
			if news && key != "" {
				n.recorder.Event(object, v1.EventTypeWarning, event, message)
			}
		}
	}
}

// subjects are those whose owners an answer concerns: its pods, or what is still
// attached where no pod is left.
func subjects(a Answer) (objects []*v1.ObjectReference) {
	for _, pod := range a.Closure.Pods {
		objects = append(objects, &v1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		})
	}
	if len(objects) > 0 {
		return objects
	}
	for _, vol := range a.Closure.Volumes {
		if vol.AttachmentUID != "" {
			objects = append(objects, &v1.ObjectReference{
				APIVersion: "storage.k8s.io/v1", Kind: "VolumeAttachment", Name: vol.Attachment, UID: vol.AttachmentUID,
			})
		}
	}
	return objects
}

// eventOf renders an answer for its subjects; empty where they need not know.
func eventOf(mode Mode, a Answer) (event, message string) {
	volume := fmt.Sprintf("Volume %s (PersistentVolume %s) is inaccessible from node %s", a.Key.Handle, a.PV, a.Key.Node)
	switch {
	case a.Action == ActionRefuse:
		return EventRefused, volume + ", but its pods are not moved: " + sentences(a.Against())
	case a.Action == ActionReport && a.Primary().Code == CodeNotDetached:
		return EventRefused, volume + "; " + sentences(a.Against())
	case a.Action == ActionMove && mode == ModeObserve:
		return EventWouldMove, fmt.Sprintf("%s; --failover-mode=enforce would move %d pods off the node", volume, len(a.Closure.Pods))
	case a.Action == ActionWait && a.Primary().Code == CodeBackoff:
		return EventDelayed, volume + "; " + sentences(a.Against())
	}
	return "", ""
}

// maxMessage bounds an event's message below the 1024 bytes of the API.
const maxMessage = 700

func sentences(reasons []Reason) string {
	parts := make([]string, len(reasons))
	for i, r := range reasons {
		parts[i] = string(r.Code) + ": " + r.Message
	}
	text := strings.Join(parts, ". ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}

// breaker emits one event when the breaker opens, and one when it closes, on
// the driver's CSIDriver.
func (n *announcer) breaker(driver string, uid types.UID, brake Brake) {
	if n.recorder == nil || n.open == brake.Open {
		return
	}
	n.open = brake.Open
	object := &v1.ObjectReference{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver", Name: driver, UID: uid}
	if !brake.Open {
		n.recorder.Event(object, v1.EventTypeNormal, EventBreakerClosed, "Failing nodes are within the limit again; failover goes on")
		return
	}
	n.recorder.Event(object, v1.EventTypeWarning, EventBreakerOpen, fmt.Sprintf(
		"%d of %d nodes with the driver fail, %d may (--max-failing-nodes): %s. Nothing is moved until that has passed; look at what they have in common",
		len(brake.Failing), brake.Carriers, brake.Limit, someOf(brake.Failing)))
}

// someOf lists the first names.
func someOf(names []string) string {
	const shown = 10
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}
