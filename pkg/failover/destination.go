package failover

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// reasonsShown bounds how many nodes a NowhereToGo explains.
const reasonsShown = 4

// checkDestinations asks whether every pod could run elsewhere (R8); those
// that share an exclusive volume must find room on one and the same node.
func (d *decider) checkDestinations(a *Answer, c *closure) {
	view := d.view(c.node)
	done := map[*podView]bool{}
	for _, p := range c.pods {
		if done[p] {
			continue
		}
		group := []*podView{p}
		if seeds := exclusiveVolumes(p); len(seeds) > 0 {
			group = reach(view, seeds, exclusive).pods
		}
		for _, member := range group {
			done[member] = true
		}
		if nodes := d.excluded(group, view.node); len(nodes) > 0 {
			names := make([]string, len(group))
			for i, member := range group {
				names[i] = podName(member.pod)
			}
			a.add(ActionRefuse, CodeNowhereToGo, time.Time{}, fmt.Sprintf("no other node can take pod %s: %s", strings.Join(names, " with "), strings.Join(nodes, "; ")))
		}
	}
}

// exclusive yields the volume itself if one node alone may have it.
func exclusive(pv *v1.PersistentVolume) []*v1.PersistentVolume {
	if volume.Exclusive(pv) {
		return []*v1.PersistentVolume{pv}
	}
	return nil
}

func exclusiveVolumes(p *podView) []*v1.PersistentVolume {
	var pvs []*v1.PersistentVolume
	for _, u := range p.uses {
		if u.ours {
			pvs = append(pvs, exclusive(u.pv)...)
		}
	}
	return pvs
}

// excluded says for every other node why it cannot take the group. It is empty
// as soon as one can.
func (d *decider) excluded(group []*podView, from *v1.Node) []string {
	var why []string
	for _, name := range d.nodes {
		if name == from.Name {
			continue
		}
		reason := d.nodeFault(d.s.Nodes[name])
		for i := 0; reason == "" && i < len(group); i++ {
			reason = d.misfit(group[i], d.s.Nodes[name], from)
		}
		if reason == "" {
			return nil
		}
		why = append(why, name+" "+reason)
	}
	switch {
	case len(why) == 0:
		return []string{"there is no other node"}
	case len(why) > reasonsShown:
		return append(why[:reasonsShown:reasonsShown], fmt.Sprintf("and %d more", len(why)-reasonsShown))
	}
	return why
}

// nodeFault says why a node takes no pod with a volume of the driver, empty if
// it does.
func (d *decider) nodeFault(node *v1.Node) string {
	switch {
	case node.DeletionTimestamp != nil:
		return "is being deleted"
	case !nodeReady(node):
		return "is not Ready"
	case node.Spec.Unschedulable:
		return "is cordoned"
	case d.held(node):
		return "is held after a failover"
	case !d.carries(node.Name):
		return "does not run the driver"
	}
	return ""
}

// carries reports whether the driver is registered on the node.
func (d *decider) carries(node string) bool {
	csiNode := d.s.CSINodes[node]
	if csiNode == nil {
		return false
	}
	for i := range csiNode.Spec.Drivers {
		if csiNode.Spec.Drivers[i].Name == d.s.Policy.DriverName {
			return true
		}
	}
	return false
}

// misfit says why one pod cannot run on the node, empty if it can.
func (d *decider) misfit(p *podView, node, from *v1.Node) string {
	if taint := untolerated(p.pod, node); taint != nil {
		return "is tainted " + taint.ToString()
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p.pod).Match(node); err != nil || !ok {
		return "does not match the pod's node selector or affinity"
	}
	for _, term := range requiredAffinity(p.pod) {
		if key := term.TopologyKey; key != v1.LabelHostname && node.Labels[key] != from.Labels[key] {
			return "is outside the pod's required affinity by " + key
		}
	}
	for _, u := range p.uses {
		if u.pv == nil {
			continue
		}
		if !reachable(u.pv, node) {
			return "cannot reach PersistentVolume " + u.pv.Name
		}
		if !u.ours {
			continue
		}
		key := volume.Key{Handle: volume.Handle(u.pv.Spec.CSI.VolumeHandle), Node: node.Name}
		if v, ok := d.verdicts[key]; ok && v.State.Severity() >= volume.StateInaccessible.Severity() {
			return "is suspected not to reach PersistentVolume " + u.pv.Name
		}
	}
	return ""
}

// untolerated finds a taint that keeps the pod off the node.
func untolerated(pod *v1.Pod, node *v1.Node) *v1.Taint {
	for i := range node.Spec.Taints {
		taint := &node.Spec.Taints[i]
		if taint.Effect == v1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(pod.Spec.Tolerations, func(t v1.Toleration) bool {
			return t.ToleratesTaint(logr.Discard(), taint, false)
		}) {
			return taint
		}
	}
	return nil
}

// reachable applies the volume's own node affinity.
func reachable(pv *v1.PersistentVolume, node *v1.Node) bool {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return true
	}
	selector, err := nodeaffinity.NewNodeSelector(pv.Spec.NodeAffinity.Required)
	return err == nil && selector.Match(node)
}
