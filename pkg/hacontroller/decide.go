package hacontroller

import (
	"cmp"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
)

// step is what a walk does next.
type step string

const (
	stepDone        step = "done"        // the attachments are gone
	stepWait        step = "wait"        // nothing to do until a change, or for wait
	stepRefuse      step = "refuse"      // something stands in the way
	stepHold        step = "hold"        // keep new pods off the node
	stepAsk         step = "ask"         // evict the pods that are due
	stepEnd         step = "end"         // end this round of asking, without a record
	stepDrained     step = "drained"     // the pods are gone in the ordinary way
	stepRecord      step = "record"      // write the plan
	stepFence       step = "fence"       // revoke access, and ask where there is a kubelet
	stepPods        step = "pods"        // force-delete the pods
	stepAttachments step = "attachments" // delete the attachments
)

// view is all that a decision depends on: what was read live and when things
// were tried.
type view struct {
	now time.Time
	// nodeReady is the Node as read live; one that does not exist is not Ready.
	nodeReady bool
	// held is true when taint and annotation cover the walk's volumes; once
	// recorded, as fenced ones.
	held bool
	// canFence is whether there is a Fencer at all.
	canFence bool

	pods []podView
	// attachments is how many of the plan exist, and deleting how many of those
	// carry a deletion timestamp.
	attachments, deleting int
	// missing is true before the record when an attachment of the plan is not
	// known here.
	missing bool
	// recorded and fenced count the attachments with the record, and those whose
	// fence was acknowledged.
	recorded, fenced int
	// nextFence is the earliest next try of a fence that failed.
	nextFence time.Time
	// veto is why the closure must not be touched, before the record.
	veto Reason

	askedSince    time.Time
	notBefore     time.Time
	evictDeadline time.Duration
	overridePDB   bool
}

// podView is one pod of the plan that still exists.
type podView struct {
	uid types.UID
	// terminating: it has a deletion timestamp; forced: without grace, so that
	// only finalizers keep it.
	terminating, forced bool
	// asking: its eviction is under way.
	asking bool
	// refusal is why its last eviction was not accepted, and next when to try
	// again.
	refusal Reason
	next    time.Time
}

// due reports whether the pod should be asked now.
func (p podView) due(now time.Time) bool {
	return !p.terminating && !p.asking && !now.Before(p.next)
}

// decision is the next step, with the reason of a refusal and the longest time
// until the next look; 0 leaves that to the reconcile interval.
type decision struct {
	step   step
	reason Reason
	wait   time.Duration
}

// decide says what a walk does next. It is pure.
func decide(v view) decision {
	if v.recorded > 0 {
		return decideRecorded(v)
	}
	return decideAsked(v)
}

// decideAsked is the part with a way back.
func decideAsked(v view) decision {
	switch {
	case v.missing:
		return decision{step: stepRefuse, reason: ReasonAttachmentUnknown, wait: time.Second}
	case v.attachments == 0:
		return decision{step: stepDone}
	case v.now.Before(v.notBefore):
		return decision{step: stepWait, wait: v.notBefore.Sub(v.now)}
	case v.veto != "":
		return decision{step: stepRefuse, reason: v.veto}
	case !v.nodeReady && !v.canFence:
		return decision{step: stepRefuse, reason: ReasonNoFence}
	case !v.held:
		return decision{step: stepHold}
	case !v.nodeReady:
		return decision{step: stepRecord}
	case len(v.pods) == 0:
		return decision{step: stepDrained}
	case v.askedSince.IsZero():
		return decision{step: stepAsk}
	}
	if deadline := v.askedSince.Add(v.evictDeadline); v.now.Before(deadline) {
		return askUntil(v, deadline)
	}
	return decideOverdue(v)
}

// askUntil asks the pods that are due, or waits for those that were asked.
func askUntil(v view, deadline time.Time) decision {
	next := deadline
	for _, p := range v.pods {
		switch {
		case p.due(v.now):
			return decision{step: stepAsk}
		case !p.terminating && !p.asking && p.next.Before(next):
			next = p.next
		}
	}
	return decision{step: stepWait, wait: next.Sub(v.now)}
}

// decideOverdue is the choice at the deadline, on a Ready node.
func decideOverdue(v view) decision {
	refusal := ReasonNotStopped
	for _, p := range v.pods {
		if !p.terminating {
			refusal = cmp.Or(p.refusal, ReasonEvictionFailed)
			break
		}
	}
	switch {
	case refusal == ReasonNotStopped && v.canFence,
		refusal == ReasonDisruptionBudget && v.canFence && v.overridePDB,
		refusal == ReasonSeveralBudgets && v.canFence && v.overridePDB:
		return decision{step: stepRecord}
	default:
		return decision{step: stepEnd, reason: refusal}
	}
}

// decideRecorded is the part without a way back.
func decideRecorded(v view) decision {
	switch {
	case v.attachments == 0:
		return decision{step: stepDone}
	case v.recorded < v.attachments:
		return decision{step: stepRecord}
	case !v.canFence:
		return decision{step: stepRefuse, reason: ReasonNoFence}
	case !v.held:
		return decision{step: stepHold}
	case v.fenced < v.attachments:
		return decision{step: stepFence, wait: fenceWait(v)}
	}
	for _, p := range v.pods {
		if !p.forced {
			return decision{step: stepPods}
		}
	}
	switch {
	case len(v.pods) > 0:
		return decision{step: stepRefuse, reason: ReasonFinalizers}
	case v.deleting < v.attachments:
		return decision{step: stepAttachments}
	default:
		return decision{step: stepWait}
	}
}

// fenceWait is when a fence, or on a Ready node an eviction, is tried again.
func fenceWait(v view) time.Duration {
	next := v.nextFence
	if v.nodeReady {
		for _, p := range v.pods {
			if !p.terminating && !p.asking && !p.next.IsZero() && (next.IsZero() || p.next.Before(next)) {
				next = p.next
			}
		}
	}
	if next.IsZero() {
		return 0
	}
	return max(next.Sub(v.now), time.Millisecond)
}

func finished(pod *v1.Pod) bool { return kube.Finished(pod) }

func compareUIDs(a, b types.UID) int { return cmp.Compare(a, b) }
