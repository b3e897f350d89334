package cache

import v1 "k8s.io/api/core/v1"

func (w *desiredStateOfWorld) SetMultiAttachError(volumeName v1.UniqueVolumeName, nodeName string) {
	s := w.nodes.of(nodeName)
	s.Lock()
	defer s.Unlock()
	if v, ok := s.m[nodeName][volumeName]; ok {
		v.multiAttachError = true
	}
}

func (w *desiredStateOfWorld) MultiAttachErrorReported(volumeName v1.UniqueVolumeName, nodeName string) (reported bool) {
	w.read(volumeName, nodeName, func(v *desiredVolume) { reported = v.multiAttachError })
	return reported
}

func (w *desiredStateOfWorld) GetVolumePodsOnNodes(nodeNames []string, volumeName v1.UniqueVolumeName) []*v1.Pod {
	w.nodes.rLockAll()
	defer w.nodes.rUnlockAll()
	pods := []*v1.Pod{}
	for _, nodeName := range nodeNames {
		if v, ok := w.nodes.of(nodeName).m[nodeName][volumeName]; ok {
			pods = append(pods, v.podObjects()...)
		}
	}
	return pods
}
