package cache

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/operationexecutor"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// desiredStateOfWorld is striped by node, since every change names one.
type desiredStateOfWorld struct {
	plugins *volume.VolumePluginMgr
	nodes   *striped[string, desiredVolumes]
}

// desiredVolumes are the volumes of a node: nil for a node without any.
type desiredVolumes map[v1.UniqueVolumeName]*desiredVolume

type desiredVolume struct {
	spec *volume.Spec
	// pods is a list and not a map: a node has room for few.
	pods             []scheduledPod
	multiAttachError bool
}

type scheduledPod struct {
	name types.UniquePodName
	pod  *v1.Pod
}

// NewDesiredStateOfWorld makes one without nodes.
func NewDesiredStateOfWorld(volumePluginMgr *volume.VolumePluginMgr, _ ...Option) DesiredStateOfWorld {
	return &desiredStateOfWorld{plugins: volumePluginMgr, nodes: newStriped[string, desiredVolumes]()}
}

func (v *desiredVolume) indexOf(podName types.UniquePodName) int {
	return slices.IndexFunc(v.pods, func(p scheduledPod) bool { return p.name == podName })
}

func (v *desiredVolume) podObjects() []*v1.Pod {
	pods := make([]*v1.Pod, 0, len(v.pods))
	for _, p := range v.pods {
		pods = append(pods, p.pod)
	}
	return pods
}

func (w *desiredStateOfWorld) AddNode(nodeName string) {
	s := w.nodes.of(nodeName)
	s.Lock()
	defer s.Unlock()
	if _, ok := s.m[nodeName]; !ok {
		s.m[nodeName] = nil
	}
}

func (w *desiredStateOfWorld) DeleteNode(nodeName string) error {
	s := w.nodes.of(nodeName)
	s.Lock()
	defer s.Unlock()
	if n := len(s.m[nodeName]); n > 0 {
		return fmt.Errorf("node %q is still to have %d volumes", nodeName, n)
	}
	delete(s.m, nodeName)
	return nil
}

func (w *desiredStateOfWorld) AddPod(podName types.UniquePodName, pod *v1.Pod, volumeSpec *volume.Spec, nodeName string) (v1.UniqueVolumeName, error) {
	// The node is looked for before the volume is named, for its error to come
	// first, and again under the lock, since it may be gone by then.
	if !w.NodeExists(nodeName) {
		return "", errNotManaged(nodeName)
	}
	volumeName, err := w.plugins.UniqueVolumeName(volumeSpec)
	if err != nil {
		return "", err
	}
	s := w.nodes.of(nodeName)
	s.Lock()
	defer s.Unlock()
	volumes, ok := s.m[nodeName]
	if !ok {
		return "", errNotManaged(nodeName)
	}
	if volumes == nil {
		volumes = desiredVolumes{}
		s.m[nodeName] = volumes
	}
	v, ok := volumes[volumeName]
	if !ok {
		v = &desiredVolume{spec: volumeSpec}
		volumes[volumeName] = v
	}
	if v.indexOf(podName) < 0 {
		v.pods = append(v.pods, scheduledPod{podName, pod})
	}
	return volumeName, nil
}

func errNotManaged(nodeName string) error {
	return fmt.Errorf("no node with the name %q is managed", nodeName)
}

func (w *desiredStateOfWorld) DeletePod(podName types.UniquePodName, volumeName v1.UniqueVolumeName, nodeName string) {
	s := w.nodes.of(nodeName)
	s.Lock()
	defer s.Unlock()
	volumes := s.m[nodeName]
	v, ok := volumes[volumeName]
	if !ok {
		return
	}
	if i := v.indexOf(podName); i >= 0 {
		v.pods = slices.Delete(v.pods, i, i+1)
	}
	if len(v.pods) == 0 {
		delete(volumes, volumeName)
	}
	if len(volumes) == 0 {
		s.m[nodeName] = nil
	}
}

func (w *desiredStateOfWorld) NodeExists(nodeName string) bool {
	_, ok := w.nodes.get(nodeName)
	return ok
}

// read calls f with the volume of the node, if there is one, under its lock.
func (w *desiredStateOfWorld) read(volumeName v1.UniqueVolumeName, nodeName string, f func(*desiredVolume)) bool {
	s := w.nodes.of(nodeName)
	s.RLock()
	defer s.RUnlock()
	v, ok := s.m[nodeName][volumeName]
	if ok {
		f(v)
	}
	return ok
}

func (w *desiredStateOfWorld) VolumeExists(volumeName v1.UniqueVolumeName, nodeName string) bool {
	return w.read(volumeName, nodeName, func(*desiredVolume) {})
}

func (w *desiredStateOfWorld) GetVolumesToAttach() []VolumeToAttach {
	w.nodes.rLockAll()
	defer w.nodes.rUnlockAll()
	n := 0
	for _, volumes := range w.nodes.all {
		n += len(volumes)
	}
	list := make([]VolumeToAttach, 0, n)
	for nodeName, volumes := range w.nodes.all {
		for volumeName, v := range volumes {
			list = append(list, VolumeToAttach{operationexecutor.VolumeToAttach{
				VolumeName: volumeName, VolumeSpec: v.spec, NodeName: nodeName, ScheduledPods: v.podObjects(),
			}})
		}
	}
	return list
}

func (w *desiredStateOfWorld) GetPodToAdd() map[types.UniquePodName]PodToAdd {
	w.nodes.rLockAll()
	defer w.nodes.rUnlockAll()
	pods := map[types.UniquePodName]PodToAdd{}
	for nodeName, volumes := range w.nodes.all {
		for volumeName, v := range volumes {
			for _, p := range v.pods {
				pods[p.name] = PodToAdd{Pod: p.pod, VolumeName: volumeName, NodeName: nodeName}
			}
		}
	}
	return pods
}
