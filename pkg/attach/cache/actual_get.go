package cache

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/operationexecutor"
)

// attached describes the pair.
func (p *pair) attached() operationexecutor.AttachedVolume {
	return operationexecutor.AttachedVolume{
		VolumeName:         p.volume,
		VolumeSpec:         p.spec,
		NodeName:           p.node.name,
		DevicePath:         p.devicePath,
		PluginIsAttachable: true,
	}
}

func (w *actualStateOfWorld) describe(p *pair) AttachedVolume {
	return AttachedVolume{
		AttachedVolume:      p.attached(),
		MountedByNode:       p.mounted,
		DetachRequestedTime: w.detachRequestedTime(p),
	}
}

func (w *actualStateOfWorld) GetAttachState(volumeName v1.UniqueVolumeName, nodeName string) AttachState {
	s := w.volumes.of(volumeName)
	s.RLock()
	defer s.RUnlock()
	switch p := s.m[volumeName].on(nodeName); {
	case p == nil:
		return AttachStateDetached
	case p.confirmed:
		return AttachStateAttached
	default:
		return AttachStateUncertain
	}
}

func (w *actualStateOfWorld) VolumeNodeExists(volumeName v1.UniqueVolumeName, nodeName string) bool {
	return w.GetAttachState(volumeName, nodeName) != AttachStateDetached
}

func (w *actualStateOfWorld) GetNodesForAttachedVolume(volumeName v1.UniqueVolumeName) []string {
	s := w.volumes.of(volumeName)
	s.RLock()
	defer s.RUnlock()
	nodes := []string{}
	for p := range s.m[volumeName].each {
		if p.confirmed {
			nodes = append(nodes, p.node.name)
		}
	}
	return nodes
}

func (w *actualStateOfWorld) GetAttachedVolumesForNode(nodeName string) []AttachedVolume {
	n, ok := w.nodes.get(nodeName)
	if !ok {
		return []AttachedVolume{}
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	list := make([]AttachedVolume, 0, len(n.pairs))
	for _, p := range n.pairs {
		list = append(list, w.describe(p))
	}
	return list
}

func (w *actualStateOfWorld) GetAttachedVolumes() []AttachedVolume {
	w.volumes.rLockAll()
	defer w.volumes.rUnlockAll()
	list := make([]AttachedVolume, 0, w.volumes.len())
	for _, at := range w.volumes.all {
		for p := range at.each {
			list = append(list, w.describe(p))
		}
	}
	return list
}

func (w *actualStateOfWorld) GetAttachedVolumesPerNode() map[string][]operationexecutor.AttachedVolume {
	w.volumes.rLockAll()
	defer w.volumes.rUnlockAll()
	perNode := map[string][]operationexecutor.AttachedVolume{}
	for _, at := range w.volumes.all {
		for p := range at.each {
			if p.confirmed {
				perNode[p.node.name] = append(perNode[p.node.name], p.attached())
			}
		}
	}
	return perNode
}
