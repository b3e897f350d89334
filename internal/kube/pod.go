package kube

import (
	v1 "k8s.io/api/core/v1"
)

// ClaimNames lists the PersistentVolumeClaims that a pod uses, generic
// ephemeral volumes included, by the pod's own name of the volume.
func ClaimNames(pod *v1.Pod) map[string]string {
	claims := map[string]string{}
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		switch {
		case vol.PersistentVolumeClaim != nil:
			claims[vol.Name] = vol.PersistentVolumeClaim.ClaimName
		case vol.Ephemeral != nil:
			claims[vol.Name] = pod.Name + "-" + vol.Name
		}
	}
	return claims
}

// Finished reports whether a pod has run to its end and uses nothing any more.
func Finished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// IsMirror reports whether a pod is the API's image of a static pod; deleting
// it has no effect on what runs.
func IsMirror(pod *v1.Pod) bool {
	_, ok := pod.Annotations[v1.MirrorPodAnnotationKey]
	return ok
}
