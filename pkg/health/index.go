package health

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// volumes knows the driver's bound PersistentVolumes by name and by handle. One
// handle may have several: people bind one export to many namespaces.
type volumes struct {
	handles map[string]volume.Handle
	names   map[volume.Handle]map[string]struct{}
}

func newVolumes() *volumes {
	return &volumes{handles: map[string]volume.Handle{}, names: map[volume.Handle]map[string]struct{}{}}
}

// set notes that the PersistentVolume stands for the handle, "" for none of
// ours. It returns the handle that lost its last PersistentVolume, if any.
func (v *volumes) set(name string, handle volume.Handle) (lost volume.Handle) {
	if old, ok := v.handles[name]; ok && old != handle {
		delete(v.handles, name)
		delete(v.names[old], name)
		if len(v.names[old]) == 0 {
			delete(v.names, old)
			lost = old
		}
	}
	if handle == "" {
		return lost
	}
	v.handles[name] = handle
	if v.names[handle] == nil {
		v.names[handle] = map[string]struct{}{}
	}
	v.names[handle][name] = struct{}{}
	return lost
}

func (v *volumes) of(handle volume.Handle) []string { return slices.Sorted(maps.Keys(v.names[handle])) }

// boundHandle is the handle of a PersistentVolume of the driver that is bound
// to a claim, else "".
func boundHandle(driver string, pv *v1.PersistentVolume) volume.Handle {
	if pv == nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver || pv.Status.Phase != v1.VolumeBound {
		return ""
	}
	return volume.Handle(pv.Spec.CSI.VolumeHandle)
}

// attachment is a VolumeAttachment of the driver, as far as it matters here.
type attachment struct {
	key      volume.Key
	pv       string
	attached bool
}

// attachments knows the driver's VolumeAttachments, by name, node and handle.
type attachments struct {
	byName   map[string]attachment
	byNode   map[string]map[string]struct{}
	byHandle map[volume.Handle]map[string]struct{}
}

func newAttachments() *attachments {
	return &attachments{
		byName:   map[string]attachment{},
		byNode:   map[string]map[string]struct{}{},
		byHandle: map[volume.Handle]map[string]struct{}{},
	}
}

func (a *attachments) put(name string, at attachment) {
	a.remove(name)
	a.byName[name] = at
	if a.byNode[at.key.Node] == nil {
		a.byNode[at.key.Node] = map[string]struct{}{}
	}
	a.byNode[at.key.Node][name] = struct{}{}
	if a.byHandle[at.key.Handle] == nil {
		a.byHandle[at.key.Handle] = map[string]struct{}{}
	}
	a.byHandle[at.key.Handle][name] = struct{}{}
}

// remove drops the VolumeAttachment; last is true when no other one keeps the
// volume on the node.
func (a *attachments) remove(name string) (old attachment, known, last bool) {
	old, known = a.byName[name]
	if !known {
		return old, false, false
	}
	delete(a.byName, name)
	if delete(a.byNode[old.key.Node], name); len(a.byNode[old.key.Node]) == 0 {
		delete(a.byNode, old.key.Node)
	}
	if delete(a.byHandle[old.key.Handle], name); len(a.byHandle[old.key.Handle]) == 0 {
		delete(a.byHandle, old.key.Handle)
	}
	for other := range a.byNode[old.key.Node] {
		if a.byName[other].key == old.key {
			return old, true, false
		}
	}
	return old, true, true
}

// nodesOf lists where the volume is attached, sorted.
func (a *attachments) nodesOf(handle volume.Handle) []string {
	nodes := map[string]struct{}{}
	for name := range a.byHandle[handle] {
		if at := a.byName[name]; at.attached {
			nodes[at.key.Node] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// on lists what is attached to the node, in a fixed order.
func (a *attachments) on(node string) []attachment {
	var list []attachment
	for _, name := range slices.Sorted(maps.Keys(a.byNode[node])) {
		if at := a.byName[name]; at.attached {
			list = append(list, at)
		}
	}
	return list
}

// sourceOf tells which volume a VolumeAttachment is about: a PersistentVolume by
// name, or an inline one by its handle where it is of the driver.
func sourceOf(driver string, va *storagev1.VolumeAttachment) (pv string, inline volume.Handle) {
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		return *name, ""
	}
	if spec := va.Spec.Source.InlineVolumeSpec; spec != nil && spec.CSI != nil && spec.CSI.Driver == driver {
		return "", volume.Handle(spec.CSI.VolumeHandle)
	}
	return "", ""
}
