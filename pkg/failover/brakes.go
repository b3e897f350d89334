package failover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// rateWindow is the time over which Policy.MovesPerMinute counts.
const rateWindow = time.Minute

// limit returns how many of the nodes may fail, -1 for any number.
func limit(share intstr.IntOrString, carriers int) int {
	if share.Type == intstr.String && share.StrVal == "100%" {
		return -1
	}
	allowed, err := intstr.GetScaledValueFromIntOrPercent(&share, carriers, false)
	if err != nil {
		// Validate has let no such value in; the strictest limit is safe.
		allowed = 0
	}
	// Never half or more: the rest could not carry what moves, and an outage
	// that hits half of the nodes is hardly the nodes' own.
	return max(1, min(allowed, (carriers-1)/2))
}

// countNodes moves the breaker on. A node counts once, with all its volumes, if
// it has failed or is held, or any volume is confirmed inaccessible from it,
// be it from memory.
func (d *decider) countNodes() {
	failing := map[string]bool{}
	for name, node := range d.s.Nodes {
		if d.carries(name) {
			d.brake.Carriers++
			if !nodeReady(node) {
				failing[name] = true
			}
		}
		if d.held(node) {
			failing[name] = true
		}
	}
	for key, v := range d.verdicts {
		if v.FailsFromNode() && d.s.Nodes[key.Node] != nil {
			failing[key.Node] = true
		}
	}
	d.brake.Failing = slices.Sorted(maps.Keys(failing))
	d.brake.Limit = limit(d.s.Policy.MaxFailingNodes, d.brake.Carriers)

	b := &d.memory.Breaker
	switch {
	case !d.s.Synced:
		// Half a list of nodes proves neither a storm nor its end.
	case d.brake.Limit < 0:
		*b = Breaker{}
	case len(failing) > d.brake.Limit:
		if !b.Open {
			b.Open, b.Since = true, d.now
		}
		b.Calm = time.Time{}
	case b.Open && b.Calm.IsZero():
		b.Calm = d.now
	}
	if b.Open && !b.Calm.IsZero() && d.now.Sub(b.Calm) >= d.s.Policy.StormCooldown {
		*b = Breaker{}
	}
	d.brake.Breaker = *b
	d.storm = d.gathering()
}

// gathering lists the nodes that would count if what is observed on them were
// confirmed: in an outage of the storage the nodes do not confirm in the same
// instant, and the first must not be moved while the others are about to.
func (d *decider) gathering() []string {
	nodes := map[string]bool{}
	for key, v := range d.verdicts {
		if v.State == volume.StateInaccessible && !v.Confirmed && !key.Everywhere() &&
			d.s.Nodes[key.Node] != nil && d.now.Sub(v.Since) < d.s.Policy.StormWindow {
			nodes[key.Node] = true
		}
	}
	for _, name := range d.brake.Failing {
		delete(nodes, name)
	}
	return slices.Sorted(maps.Keys(nodes))
}

// applyBrakes lets a move pass that nothing else speaks against, or makes it
// wait. What has passed once is not counted again, but a storm stops it still.
func (d *decider) applyBrakes(a *Answer, c *closure) {
	d.checkStorm(a)
	if until := d.s.Started.Add(d.s.Policy.HoldOff); d.now.Before(until) {
		a.add(ActionWait, CodeHoldOff, until, "nothing moves until "+stamp(until)+" after a start or a change of leader (--hold-off)")
	}
	fresh := d.ungranted(c)
	if len(fresh) == 0 && d.grantedAll(c) {
		if a.Action == ActionMove {
			a.add(ActionMove, CodeAlreadyGranted, time.Time{}, "the move has passed the brakes before")
		}
		return
	}
	d.checkBackoff(a, fresh)
	d.checkRate(a, len(fresh))
	if a.Action == ActionMove {
		d.grant(c, fresh)
	}
}

func (d *decider) checkStorm(a *Answer) {
	if d.brake.Open {
		message := fmt.Sprintf("%d of %d nodes with the driver fail (%s), %d may (--max-failing-nodes=%s); look at what they have in common",
			len(d.brake.Failing), d.brake.Carriers, strings.Join(d.brake.Failing, ", "), d.brake.Limit, d.s.Policy.MaxFailingNodes.String())
		look := time.Time{}
		if !d.brake.Calm.IsZero() {
			look = d.brake.Calm.Add(d.s.Policy.StormCooldown)
			message = "too many nodes failed until " + stamp(d.brake.Calm) + "; moves go on at " + stamp(look) + " if it stays calm (--storm-cooldown)"
		}
		a.add(ActionWait, CodeBreakerOpen, look, message)
		return
	}
	more := d.storm
	if d.brake.Limit >= 0 && len(more) > 0 && len(d.brake.Failing)+len(more) > d.brake.Limit {
		a.add(ActionWait, CodeStormSuspected, time.Time{}, fmt.Sprintf("volumes may be inaccessible from %s as well, which is not confirmed; together that would be more nodes than may fail (%d)", strings.Join(more, ", "), d.brake.Limit))
	}
}

// checkRate lets through what the last minute leaves room for, and a closure
// larger than the rate once nothing else was moved.
func (d *decider) checkRate(a *Answer, pods int) {
	all := slices.Concat(d.inherited(), d.memory.Spent)
	spent := 0
	for _, s := range all {
		spent += s.Pods
	}
	room := d.s.Policy.MovesPerMinute - spent
	if pods == 0 || pods <= room || spent == 0 {
		return
	}
	until := d.now
	for _, s := range all {
		room += s.Pods
		until = s.At.Add(rateWindow)
		if pods <= room {
			break
		}
	}
	a.add(ActionWait, CodeRateLimited, until, fmt.Sprintf("%d pods were moved within a minute (--moves-per-minute=%d)", spent, d.s.Policy.MovesPerMinute))
}

// inherited lists what earlier leaders have moved within the minute, oldest
// first, so that a process which dies and starts again has not its full rate each
// time. What they remembered is lost, but each volume was held before its pods
// went: a held volume counts as a pod.
func (d *decider) inherited() []Spending {
	if d.now.Sub(d.s.Started) >= rateWindow {
		return nil
	}
	var spent []Spending
	for _, name := range d.nodes {
		value, ok := d.s.Nodes[name].Annotations[volume.HoldKey(d.s.Policy.DriverName)]
		if !ok {
			continue
		}
		record, err := volume.ParseHoldRecord(value)
		if err != nil {
			continue // Who walks says so.
		}
		for _, held := range record.Volumes {
			if at := record.HeldSince(held).Time; at.Before(d.s.Started) && d.now.Sub(at) < rateWindow {
				spent = append(spent, Spending{At: at, Pods: 1})
			}
		}
	}
	slices.SortStableFunc(spent, func(a, b Spending) int { return a.At.Compare(b.At) })
	return spent
}

// checkBackoff makes a workload wait that was moved again and again: the next
// node does not help it.
func (d *decider) checkBackoff(a *Answer, fresh []*podView) {
	for _, p := range fresh {
		h, ok := d.s.Memory.Workloads[workloadOf(p)]
		if !ok {
			continue
		}
		if until := h.Last.Add(d.s.Policy.Backoff.after(h.Moves)); d.now.Before(until) {
			a.add(ActionWait, CodeBackoff, until, fmt.Sprintf("pod %s or its predecessors were moved %d times, last at %s; the next move is not before %s", podName(p.pod), h.Moves, stamp(h.Last), stamp(until)))
		}
	}
}

// after returns the delay that follows a number of moves.
func (b Backoff) after(moves int) time.Duration {
	if moves < b.Free {
		return 0
	}
	delay := b.Initial
	for range moves - b.Free {
		if delay >= b.Max {
			break
		}
		delay *= 2
	}
	return min(delay, b.Max)
}

// workloadOf names what a pod is an incarnation of.
func workloadOf(p *podView) Workload {
	owner := metav1.GetControllerOf(p.pod)
	switch {
	case owner == nil:
		return Workload{Owner: p.pod.UID}
	case owner.Kind == "StatefulSet":
		return Workload{Owner: owner.UID, Member: p.pod.Name}
	}
	w := Workload{Owner: owner.UID}
	for i := range p.pod.Spec.Volumes {
		if claim := p.pod.Spec.Volumes[i].PersistentVolumeClaim; claim != nil {
			w.Member = claim.ClaimName
			break
		}
	}
	return w
}

// ungranted lists the pods of a closure that have not passed the brakes.
func (d *decider) ungranted(c *closure) []*podView {
	var fresh []*podView
	for _, p := range c.pods {
		if _, ok := d.memory.Grants[p.pod.UID]; !ok {
			fresh = append(fresh, p)
		}
	}
	return fresh
}

// grantedAll reports whether every attachment of the closure has passed.
func (d *decider) grantedAll(c *closure) bool {
	for _, m := range c.volumes {
		if m.attachment == nil {
			return false
		}
		if _, ok := d.memory.Grants[m.attachment.UID]; !ok {
			return false
		}
	}
	return true
}

// grant spends what the move costs.
func (d *decider) grant(c *closure, fresh []*podView) {
	m := &d.memory
	if len(fresh) > 0 {
		m.Spent = append(m.Spent, Spending{At: d.now, Pods: len(fresh)})
	}
	for _, p := range fresh {
		m.Grants[p.pod.UID] = Grant{At: d.now, Seen: d.now}
		// History counts against the snapshot: the replicas of one owner that
		// go together are one move.
		w := workloadOf(p)
		m.Workloads[w] = History{Moves: d.s.Memory.Workloads[w].Moves + 1, Last: d.now}
	}
	for _, vol := range c.volumes {
		m.Grants[vol.attachment.UID] = Grant{At: d.now, Seen: d.now}
	}
}

// touch keeps the grants of a closure that still fails.
func (d *decider) touch(c Closure) {
	keep := func(uid types.UID) {
		if g, ok := d.memory.Grants[uid]; ok {
			g.Seen = d.now
			d.memory.Grants[uid] = g
		}
	}
	for _, pod := range c.Pods {
		keep(pod.UID)
	}
	for _, vol := range c.Volumes {
		keep(vol.AttachmentUID)
	}
}
