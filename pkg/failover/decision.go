package failover

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Decision is the answer to one Snapshot.
type Decision struct {
	// Answers are one per unwell (volume, node), those confirmed first in
	// front.
	Answers []Answer `json:"answers"`
	Brake   Brake    `json:"brake"`
	// Look is when to decide again though nothing has changed; zero for never.
	Look time.Time `json:"look,omitzero"`
	// Memory goes into the next Snapshot.
	Memory Memory `json:"-"`
}

// Brake is what the breaker saw.
type Brake struct {
	Breaker
	// Failing are the nodes that count, by name.
	Failing []string `json:"failing,omitempty"`
	// Carriers is how many nodes carry the driver.
	Carriers int `json:"carriers"`
	// Limit is how many may fail; -1 when the breaker is switched off.
	Limit int `json:"limit"`
}

// Answer is what is to be done about one volume on one node.
type Answer struct {
	Key volume.Key `json:"key"`
	// PV is empty where no single PersistentVolume has the handle.
	PV     string `json:"pv,omitempty"`
	Action Action `json:"action"`
	// Reasons are the arguments for and against, in the order of the rules.
	Reasons []Reason `json:"reasons"`
	// Closure is what a move would concern.
	Closure Closure `json:"closure"`
	// Lead is true for the answer that speaks for its closure: several volumes
	// of one closure may fail at once.
	Lead bool `json:"lead,omitempty"`
	// Look is when to look again, zero when only a change matters.
	Look time.Time `json:"look,omitzero"`
}

// Closure is, on one node, the pods and volumes that can only move together.
type Closure struct {
	Node    string      `json:"node,omitempty"`
	Pods    []PodRef    `json:"pods,omitempty"`
	Volumes []VolumeRef `json:"volumes,omitempty"`
}

// PodRef names a pod.
type PodRef struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
}

// VolumeRef names a volume of a closure and its attachment, the latter empty
// where there is none.
type VolumeRef struct {
	PV            string        `json:"pv"`
	Handle        volume.Handle `json:"handle"`
	Attachment    string        `json:"attachment,omitempty"`
	AttachmentUID types.UID     `json:"attachmentUID,omitempty"`
	PodUIDs       []types.UID   `json:"podUIDs,omitempty"`
}

// Targets renders the closure for the package that moves it: one target per
// VolumeAttachment.
func (c Closure) Targets() []volume.Target {
	targets := make([]volume.Target, 0, len(c.Volumes))
	for _, vol := range c.Volumes {
		targets = append(targets, volume.Target{
			PV: vol.PV, Node: c.Node, VolumeAttachmentUID: vol.AttachmentUID, PodUIDs: vol.PodUIDs,
		})
	}
	return targets
}

// Primary is the reason that decided: the first one that asks for the answer's
// action.
func (a Answer) Primary() Reason {
	for _, r := range a.Reasons {
		if r.Action == a.Action {
			return r
		}
	}
	return Reason{Action: a.Action}
}

// Against lists the reasons that speak against a move.
func (a Answer) Against() []Reason {
	var against []Reason
	for _, r := range a.Reasons {
		if r.Action != ActionMove {
			against = append(against, r)
		}
	}
	return against
}

// add puts in a reason; the strongest one makes the action.
func (a *Answer) add(action Action, code Code, look time.Time, message string) {
	a.Reasons = append(a.Reasons, Reason{Code: code, Action: action, Message: message, Look: look})
	if action.rank() > a.Action.rank() {
		a.Action = action
	}
	if !look.IsZero() && (a.Look.IsZero() || look.Before(a.Look)) {
		a.Look = look
	}
}
