package health

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// What the event loop does with each kind of object. The object is looked up in
// the cache; not finding it means that it is gone.

func (m *Monitor) takePV(ctx context.Context, i item, now time.Time) {
	handle := boundHandle(m.cfg.DriverName, m.persistentVolume(i.name))
	_, known := m.volumes.handles[i.name]
	if lost := m.volumes.set(i.name, handle); lost != "" {
		m.tracker.forget(lost)
		klog.FromContext(ctx).V(4).Info("Forgot volume", "persistentVolume", i.name, "volumeHandle", lost)
	}
	if handle == "" || known {
		return
	}
	waiting := m.orphaned[i.name]
	delete(m.orphaned, i.name)
	for va := range waiting {
		m.takeVA(item{kind: kindVA, name: va}, now)
	}
	m.tracker.claimChanged(volume.Key{Handle: handle})
	m.retryPods(now)
}

// retryPods reads those pods again whose volumes were not known.
func (m *Monitor) retryPods(now time.Time) {
	for name := range m.unresolved {
		m.takePod(item{kind: kindPod, namespace: name.Namespace, name: name.Name}, now)
	}
}

func (m *Monitor) takePod(i item, now time.Time) {
	name := types.NamespacedName{Namespace: i.namespace, Name: i.name}
	delete(m.unresolved, name)
	before, known := m.pods[name]
	pod, err := m.look.pods.Pods(i.namespace).Get(i.name)
	if err != nil || known && (pod.UID != before || kube.Finished(pod)) {
		if known {
			m.tracker.end(podOrigin(before), now)
			delete(m.pods, name)
			delete(m.podNames, before)
		}
		if err != nil {
			return
		}
	}
	readings, unresolved := podReadings(m.cfg.DriverName, pod, m, now)
	if unresolved {
		m.unresolved[name] = struct{}{}
	}
	m.tracker.tell(podOrigin(pod.UID), readings, now)
	if m.tracker.heard(podOrigin(pod.UID)) {
		m.pods[name], m.podNames[pod.UID] = pod.UID, name
	} else {
		delete(m.pods, name)
		delete(m.podNames, pod.UID)
	}
}

func podOrigin(uid types.UID) origin {
	return origin{source: volume.SourcePodStatus, object: string(uid)}
}

func (m *Monitor) takeVA(i item, now time.Time) {
	va, err := m.look.vas.Get(i.name)
	if err != nil {
		if old, _, last := m.attachments.remove(i.name); last {
			m.tracker.detach(old.key, now)
		}
		for _, waiting := range m.orphaned {
			delete(waiting, i.name)
		}
		return
	}
	pvName, handle := sourceOf(m.cfg.DriverName, va)
	if pvName != "" {
		if handle = boundHandle(m.cfg.DriverName, m.persistentVolume(pvName)); handle == "" {
			m.orphan(pvName, i.name)
			return
		}
	}
	if handle == "" {
		return
	}
	at := attachment{
		key:      volume.Key{Handle: handle, Node: va.Spec.NodeName},
		pv:       pvName,
		attached: va.Status.Attached,
	}
	before := m.attachments.byName[i.name]
	m.attachments.put(i.name, at)
	m.tracker.attach(at.key)
	if before.attached != at.attached {
		m.takeCSINode(at.key.Node, now)
	}
}

// orphan has the VolumeAttachment looked at again when its volume is known. One
// that is known already is kept, since a volume's going says nothing of it.
func (m *Monitor) orphan(pv, va string) {
	if m.orphaned[pv] == nil {
		m.orphaned[pv] = map[string]struct{}{}
	}
	m.orphaned[pv][va] = struct{}{}
}

func (m *Monitor) takeCSINode(node string, now time.Time) {
	o := origin{source: volume.SourceCSINodeStatus, object: node}
	csiNode, err := m.look.csiNodes.Get(node)
	if err != nil {
		m.tracker.tell(o, nil, now)
		return
	}
	readings := csiNodeReadings(m.cfg.DriverName, csiNode, m.onNode(node), now)
	readings = slices.DeleteFunc(readings, func(r volume.Reading) bool {
		// Healthy ones matter where something was wrong.
		return r.Healthy() && !m.tracker.knows(r.Key)
	})
	// What is suspected is not attached any more: nothing new can be wrong with
	// it, but the node's word that all is well counts.
	suspected := m.describe(m.tracker.suspected(node, volume.SourceCSINodeStatus))
	for _, r := range csiNodeReadings(m.cfg.DriverName, csiNode, suspected, now) {
		if r.Healthy() {
			readings = append(readings, r)
		}
	}
	m.tracker.tell(o, readings, now)
}

// onNode lists the driver's volumes attached to the node.
func (m *Monitor) onNode(node string) []onNode {
	var list []onNode
	for _, at := range m.attachments.on(node) {
		list = append(list, describe(at.key.Handle, m.persistentVolume(at.pv)))
	}
	return list
}

func (m *Monitor) describe(handles []volume.Handle) []onNode {
	var list []onNode
	for _, handle := range handles {
		for _, pv := range m.volumes.of(handle) {
			list = append(list, describe(handle, m.persistentVolume(pv)))
		}
	}
	return list
}

func describe(handle volume.Handle, pv *v1.PersistentVolume) onNode {
	on := onNode{handle: handle, volumeMode: v1.PersistentVolumeFilesystem}
	if pv == nil {
		return on
	}
	on.accessModes = pv.Spec.AccessModes
	if pv.Spec.VolumeMode != nil {
		on.volumeMode = *pv.Spec.VolumeMode
	}
	return on
}

func (m *Monitor) takeLease(i item, now time.Time) {
	lease, err := m.look.leases.Leases(i.namespace).Get(i.name)
	if err != nil {
		m.leases.forget(i.name)
		return
	}
	if lease.Spec.RenewTime == nil {
		return
	}
	if m.leases.observe(i.name, lease.Spec.RenewTime.Time, now) {
		m.tracker.leaseRenewed(i.name, now)
	}
}

// hold is a volume that a node is held for.
type hold struct {
	key          volume.Key
	source       volume.Source
	since, until time.Time
}

// holds reads the holds on the nodes that are not older than a suspicion, each
// volume's by its own time. That is another process's; it is not believed where
// it lies ahead.
func (m *Monitor) holds(ctx context.Context, now time.Time) []hold {
	nodes, err := m.look.nodes.List(labels.Everything())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Listing nodes from the cache failed")
		return nil
	}
	source := volume.SourcePodStatus
	if m.cfg.LegacyAbnormal == LegacyFailover {
		source = volume.SourceController
	}
	var list []hold
	for _, node := range nodes {
		value, ok := node.Annotations[volume.HoldKey(m.cfg.DriverName)]
		if !ok {
			continue
		}
		record, err := volume.ParseHoldRecord(value)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Hold of node cannot be read", "node", node.Name)
			continue
		}
		for _, held := range record.Volumes {
			since := record.HeldSince(held).Time
			if since.After(now) {
				since = now
			}
			until := since.Add(m.cfg.SuspectFor)
			if until.After(now) && len(m.volumes.names[held.Handle]) > 0 {
				list = append(list, hold{volume.Key{Handle: held.Handle, Node: node.Name}, source, since, until})
			}
		}
	}
	return list
}

// claim implements objects.
func (m *Monitor) claim(namespace, name string) *v1.PersistentVolumeClaim {
	claim, err := m.look.claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil
	}
	return claim
}

// persistentVolume implements objects.
func (m *Monitor) persistentVolume(name string) *v1.PersistentVolume {
	pv, err := m.look.pvs.Get(name)
	if err != nil {
		return nil
	}
	return pv
}

// claimOf finds the claim that the PersistentVolume is bound to, nil for none.
func (m *Monitor) claimOf(pv string) *v1.PersistentVolumeClaim { return m.look.claimOf(pv) }

func (l listers) claimOf(name string) *v1.PersistentVolumeClaim {
	pv, err := l.pvs.Get(name)
	if err != nil || pv.Spec.ClaimRef == nil {
		return nil
	}
	claim, err := l.claims.PersistentVolumeClaims(pv.Spec.ClaimRef.Namespace).Get(pv.Spec.ClaimRef.Name)
	if err != nil || !claims(pv, claim) {
		return nil
	}
	return claim
}

// bound reports whether the PersistentVolume is bound to a claim, shown in the
// cache or not.
func (l listers) bound(name string) bool {
	pv, err := l.pvs.Get(name)
	return err == nil && pv.Status.Phase == v1.VolumeBound
}
