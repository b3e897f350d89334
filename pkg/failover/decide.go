package failover

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	// lookAgain bounds how long an answer stands without a second look, in case
	// a change was missed.
	lookAgain = 30 * time.Second
	// grantKept is how long a granted move is remembered after no decision has
	// concerned it any more.
	grantKept = 10 * time.Minute
	// stopSlack is how long after its grace period a pod on a Ready node may
	// still be terminating before its kubelet counts as stuck. (Deletion
	// timestamps are of the API server's clock.)
	stopSlack = 30 * time.Second
	// idleGrace is how long Kubernetes may take to detach a failing volume that
	// no pod uses any more.
	idleGrace = 30 * time.Second
)

// decider holds what one Decide derives from its snapshot.
type decider struct {
	s      Snapshot
	now    time.Time
	memory Memory
	brake  Brake
	// storm are the nodes that may soon count as well.
	storm []string

	// nodes are the names of all nodes, in order.
	nodes      []string
	verdicts   map[volume.Key]volume.Verdict
	views      map[string]*nodeView
	pvByHandle map[volume.Handle][]string
	led        map[string]bool
}

// Decide answers for every unwell volume of the snapshot. It is pure: the same
// snapshot and time give the same decision, and the snapshot is not changed.
func Decide(s Snapshot, now time.Time) Decision {
	d := &decider{
		s: s, now: now,
		memory:     s.Memory.clone(),
		nodes:      slices.Sorted(maps.Keys(s.Nodes)),
		verdicts:   map[volume.Key]volume.Verdict{},
		views:      map[string]*nodeView{},
		pvByHandle: map[volume.Handle][]string{},
		led:        map[string]bool{},
	}
	d.memory.Spent = slices.DeleteFunc(d.memory.Spent, func(s Spending) bool { return now.Sub(s.At) >= rateWindow })
	for _, v := range s.Verdicts {
		if old, ok := d.verdicts[v.Key]; !ok || worse(v, old) {
			d.verdicts[v.Key] = v
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Volumes)) {
		if handle, ok := d.handleOf(s.Volumes[name]); ok {
			d.pvByHandle[handle] = append(d.pvByHandle[handle], name)
		}
	}
	d.countNodes()
	decision := Decision{}
	for _, v := range d.inOrder() {
		if answer, ok := d.answer(v); ok {
			if !answer.Look.IsZero() && !answer.Look.After(now) {
				// A time that has passed without effect must not be waited for.
				answer.Look = now.Add(lookAgain)
			}
			decision.Answers = append(decision.Answers, answer)
			decision.Look = earlier(decision.Look, answer.Look)
		}
	}
	if d.brake.Open && !d.brake.Calm.IsZero() {
		decision.Look = earlier(decision.Look, d.brake.Calm.Add(s.Policy.StormCooldown))
	}
	d.forget()
	decision.Brake, decision.Memory = d.brake, d.memory
	return decision
}

// inOrder lists the verdicts, those confirmed first in front, so that the
// brakes let the longest failing go first.
func (d *decider) inOrder() []volume.Verdict {
	return slices.SortedFunc(maps.Values(d.verdicts), func(a, b volume.Verdict) int {
		return cmp.Or(
			a.ConfirmedAt.Compare(b.ConfirmedAt),
			cmp.Compare(a.Key.Node, b.Key.Node),
			cmp.Compare(a.Key.Handle, b.Key.Handle),
		)
	})
}

// answer sorts out what a move does not help against (R9), and passes on the
// rest.
func (d *decider) answer(v volume.Verdict) (Answer, bool) {
	a := Answer{Key: v.Key, Action: ActionMove}
	if names := d.pvByHandle[v.Key.Handle]; len(names) == 1 {
		a.PV = names[0]
	}
	switch {
	case v.State == volume.StateDataLoss:
		a.add(ActionReport, CodeDataLoss, time.Time{}, "the driver reports lost data"+detail(v)+"; a move cannot bring it back, restore from a copy")
	case v.State == volume.StateDegraded:
		a.add(ActionReport, CodeDegraded, time.Time{}, "the volume works with reduced capability"+detail(v)+"; nothing is moved for that")
	case v.State != volume.StateInaccessible:
		return Answer{}, false
	case v.Key.Everywhere():
		a.add(ActionReport, CodeEverywhere, time.Time{}, "the volume may be inaccessible from every node"+detail(v)+"; a move cannot help, look at the storage itself")
	case v.Suspect() && !d.begun(v.Key):
		a.add(ActionReport, CodeSuspect, v.SuspectUntil, "nobody observes the volume on node "+v.Key.Node+" any more, since it was detached or the pod that it failed is gone; the node is not trusted with it until "+stamp(v.SuspectUntil))
	case !v.Confirmed:
		a.add(ActionWait, CodeUnconfirmed, d.now.Add(lookAgain), "inaccessible from node "+v.Key.Node+detail(v)+", which is not confirmed yet")
	case d.s.Policy.Mode == ModeOff:
		a.add(ActionReport, CodeModeOff, time.Time{}, "failover is switched off; --failover-mode=observe shows what it would do")
	default:
		d.candidate(&a, v)
	}
	return a, true
}

// begun reports whether a move of the volume off the node is under way. It may
// outlive the pod that the volume failed, and is not broken off for that; but for
// a pod that has come since, that one's word is no evidence.
func (d *decider) begun(key volume.Key) bool {
	c := d.closure(d.view(key.Node), d.sharing(key.Handle))
	return len(c.volumes) > 0 && d.grantedAll(c) && len(d.ungranted(c)) == 0
}

// forget drops what has been out of use for long enough.
func (d *decider) forget() {
	m := &d.memory
	maps.DeleteFunc(m.Grants, func(_ types.UID, g Grant) bool { return d.now.Sub(g.Seen) > grantKept })
	maps.DeleteFunc(m.Workloads, func(_ Workload, h History) bool {
		return d.now.Sub(h.Last) > 2*d.s.Policy.Backoff.Max
	})
}

// clone makes a copy that may be changed. Idle starts empty: only what is idle
// now is carried over.
func (m Memory) clone() Memory {
	c := Memory{
		Breaker:   m.Breaker,
		Spent:     slices.Clone(m.Spent),
		Grants:    map[types.UID]Grant{},
		Workloads: map[Workload]History{},
		Idle:      map[types.UID]time.Time{},
	}
	maps.Copy(c.Grants, m.Grants)
	maps.Copy(c.Workloads, m.Workloads)
	return c
}

// worse orders two verdicts on one key: the worst state wins, of equal ones
// the unconfirmed, so that doubt is never lost.
func worse(a, b volume.Verdict) bool {
	if a.State != b.State {
		return a.State.Severity() > b.State.Severity()
	}
	return !a.Confirmed && b.Confirmed
}

// earlier returns the earlier of two times, of which zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// detail renders what the driver said, for the middle of a sentence.
func detail(v volume.Verdict) string {
	switch {
	case v.Reason != "" && v.Message != "":
		return " (" + v.Reason + ": " + v.Message + ")"
	case v.Reason+v.Message != "":
		return " (" + v.Reason + v.Message + ")"
	default:
		return ""
	}
}

// stamp renders a time for a sentence.
func stamp(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }
