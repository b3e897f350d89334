package failover

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// outOfServiceByUs is the value of our own out-of-service taint, which is
// evidence for nobody.
const outOfServiceByUs = "ha-sidecar"

// candidate weighs a confirmed verdict on one node: what must be known, what
// the closure says, and the brakes last, so that nothing is spent on a move
// that cannot be.
func (d *decider) candidate(a *Answer, v volume.Verdict) {
	a.add(ActionMove, CodeConfirmedInaccessible, time.Time{},
		fmt.Sprintf("inaccessible from node %s since %s%s, confirmed %s", v.Key.Node, stamp(v.Since), detail(v), stamp(v.ConfirmedAt)))
	a.Look = d.now.Add(lookAgain)
	view := d.view(v.Key.Node)
	seeds := d.find(a, view)
	if len(seeds) == 0 {
		return
	}
	c := d.closure(view, seeds)
	a.Closure = c.refs()
	a.Lead = d.leads(a.Closure)
	if c.member(seeds[0].Name).attachment == nil && len(c.pods) == 0 {
		a.add(ActionReport, CodeNotAttached, time.Time{}, "the volume is not attached to node "+c.node+" and no pod there uses it; nothing to move")
		return
	}
	d.touch(a.Closure)
	d.checkDriver(a)
	d.checkPaused(a, view)
	d.checkVolumes(a, c)
	d.checkPods(a, c, view)
	d.checkFence(a, c, view)
	d.checkDestinations(a, c)
	if a.Action == ActionMove {
		d.applyBrakes(a, c)
	}
}

// find looks up what everything else hangs on: the volumes of the handle. It
// returns none where the answer is given without them.
func (d *decider) find(a *Answer, view *nodeView) []*v1.PersistentVolume {
	seeds := d.sharing(a.Key.Handle)
	switch {
	case !d.s.Synced:
		a.add(ActionWait, CodeNotSynced, time.Time{}, "the caches are not filled yet")
		return nil
	case view.node == nil:
		a.add(ActionWait, CodeNodeMissing, time.Time{}, "there is no Node "+view.name)
		return nil
	case len(seeds) == 0:
		a.add(ActionWait, CodeVolumeMissing, time.Time{}, "no PersistentVolume has the handle "+string(a.Key.Handle))
		return nil
	}
	return seeds
}

// checkDriver asks for a driver whose volumes are attached (R5).
func (d *decider) checkDriver(a *Answer) {
	driver := d.s.CSIDriver
	switch {
	case driver == nil:
		a.add(ActionWait, CodeDriverMissing, time.Time{}, "there is no CSIDriver object "+d.s.Policy.DriverName+", so it is not known whether volumes are attached or a pause is set; create it")
	case driver.Spec.AttachRequired != nil && !*driver.Spec.AttachRequired:
		a.add(ActionRefuse, CodeAttachNotRequired, time.Time{}, "the driver does without attachments (attachRequired=false), so nothing would keep the old node from writing; move the pod by hand once the node is off")
	}
}

// leads reports whether no earlier answer speaks for the closure.
func (d *decider) leads(c Closure) bool {
	id := c.Node
	for _, vol := range c.Volumes {
		id += "/" + vol.PV
	}
	if d.led[id] {
		return false
	}
	d.led[id] = true
	return true
}

func (d *decider) checkPaused(a *Answer, view *nodeView) {
	if driver := d.s.CSIDriver; driver == nil {
		// checkDriver has spoken of it.
	} else if reason, ok := driver.Annotations[volume.AnnotationPaused]; ok {
		a.add(ActionRefuse, CodePaused, time.Time{}, fmt.Sprintf("failover of driver %s is paused (%s); remove annotation %s from the CSIDriver to go on", d.s.Policy.DriverName, reason, volume.AnnotationPaused))
	}
	if reason, ok := view.node.Annotations[volume.AnnotationPaused]; ok {
		a.add(ActionRefuse, CodePaused, time.Time{}, fmt.Sprintf("failover off node %s is paused (%s); remove annotation %s from the Node to go on", view.name, reason, volume.AnnotationPaused))
	}
}

// checkFence asks whether the node can be kept from writing (R1): with a fence
// always; without one only a Ready node's kubelet can be asked.
func (d *decider) checkFence(a *Answer, c *closure, view *nodeView) {
	canFence := d.canFence(view)
	switch {
	case !view.ready && !canFence && outOfService(view.node):
		a.add(ActionRefuse, CodeOutOfService, time.Time{}, "node "+view.name+" is not Ready and somebody has declared it out of service, so Kubernetes itself deletes the pods there that do not tolerate that and detaches their volumes; this is not counted as a fence, set --fence to have the pods moved")
	case !view.ready && !canFence:
		a.add(ActionRefuse, CodeNoFence, time.Time{}, "node "+view.name+" is not Ready, so its pods cannot be asked to stop, and nothing fences it; set --fence, or power it off and taint it "+v1.TaintNodeOutOfService)
	}
	if len(c.pods) > 0 {
		return
	}
	if !canFence {
		a.add(ActionReport, CodeNoUser, time.Time{}, "no pod on node "+view.name+" uses the volume, and without a fence there is nobody to ask")
		return
	}
	d.checkIdle(a, c, view)
}

// checkIdle gives Kubernetes time to detach a volume whose pod is gone: that is
// the usual way. If it hangs, the attachment keeps the next pod from starting. A
// node that is not Ready is fenced then; a Ready one has nobody to be asked, and
// only a person can tell why its kubelet does not let go.
func (d *decider) checkIdle(a *Answer, c *closure, view *nodeView) {
	since := d.now
	for _, m := range c.volumes {
		if m.attachment == nil {
			continue
		}
		if t, ok := d.s.Memory.Idle[m.attachment.UID]; ok && t.Before(since) {
			since = t
		}
		d.memory.Idle[m.attachment.UID] = since
	}
	switch until := since.Add(idleGrace); {
	case d.now.Before(until):
		a.add(ActionWait, CodeDetaching, until, "no pod on node "+c.node+" uses the volume any more; Kubernetes has until "+stamp(until)+" to detach it")
	case view.ready:
		a.add(ActionReport, CodeNotDetached, time.Time{}, "no pod on node "+c.node+" has used the volume since "+stamp(since)+", so there is nothing to move, but Kubernetes has not detached it; look at the VolumeAttachment and at the node's kubelet")
	}
}

// canFence reports whether something acknowledged can revoke the node's access.
func (d *decider) canFence(view *nodeView) bool {
	switch d.s.Policy.Fence {
	case FenceUnpublish:
		return true
	case FenceNetwork:
		return !view.ready
	default:
		return false
	}
}

// outOfService reports whether somebody else vouches that the node is off. The
// walk does not go by that, so that it is no fence here either.
func outOfService(node *v1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == v1.TaintNodeOutOfService && taint.Value != outOfServiceByUs {
			return true
		}
	}
	return false
}

// held reports whether our own taint keeps pods off the node.
func (d *decider) held(node *v1.Node) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == volume.HoldKey(d.s.Policy.DriverName) {
			return true
		}
	}
	return false
}

func nodeReady(node *v1.Node) bool { return node != nil && kube.NodeReady(node) }
