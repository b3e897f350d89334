package provisioner

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxFailure bounds a failure that is remembered, in bytes.
const maxFailure = 1 << 10

// PendingState is how far a volume without a PersistentVolume has come.
type PendingState string

// States of a volume without a PersistentVolume.
const (
	// PendingBackground: the volume may exist, now or later.
	PendingBackground PendingState = "Background"
	// PendingUnsaved: it exists, and its PersistentVolume is not saved yet.
	PendingUnsaved PendingState = "Unsaved"
)

// Pending is a claim whose volume exists, or may, without a PersistentVolume. The
// claim itself may have gone.
type Pending struct {
	// Claim is NAMESPACE/NAME.
	Claim            string       `json:"claim"`
	UID              types.UID    `json:"uid"`
	PersistentVolume string       `json:"persistentVolume"`
	State            PendingState `json:"state"`
	// Since is when this process has begun the volume, or was told of it.
	Since time.Time `json:"since"`
	// Failures are those since then, LastFailure the last, cut off where it is long.
	Failures      int       `json:"failures"`
	LastFailure   string    `json:"lastFailure,omitempty"`
	LastFailureAt time.Time `json:"lastFailureAt,omitzero"`
}

// Pending lists them, the oldest first.
func (ctrl *ProvisionController) Pending() []Pending {
	list := []Pending{}
	ctrl.ops.each(func(uid types.UID, op operation, p problem) {
		list = append(list, ctrl.pendingOf(uid, op, p))
	})
	slices.SortFunc(list, func(a, b Pending) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Claim, b.Claim), cmp.Compare(a.UID, b.UID))
	})
	return list
}

func (ctrl *ProvisionController) pendingOf(uid types.UID, op operation, p problem) Pending {
	state := PendingBackground
	if op.pv != nil {
		state = PendingUnsaved
	}
	return Pending{
		Claim: op.claim.Namespace + "/" + op.claim.Name, UID: uid, PersistentVolume: ctrl.volumeName(op.claim), State: state,
		Since: op.since, Failures: p.times, LastFailure: p.last, LastFailureAt: p.at,
	}
}

// failed notes a failure of a claim whose volume may exist; of any other its events
// tell.
func (o *operations) failed(uid types.UID, why string, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, begun := o.begun[uid]; !begun {
		return
	}
	o.problems[uid] = problem{times: o.problems[uid].times + 1, last: cut(why), at: at}
}

// each calls f for all that was begun, under the lock.
func (o *operations) each(f func(types.UID, operation, problem)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, op := range o.begun {
		f(uid, op, o.problems[uid])
	}
}

// cut bounds a text, between two characters.
func cut(text string) string {
	if len(text) <= maxFailure {
		return text
	}
	return strings.ToValidUTF8(text[:maxFailure], "") + "..."
}
