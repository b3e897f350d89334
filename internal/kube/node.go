// Package kube holds what every controller needs of Kubernetes: clients by
// lane, shared informers with transforms, and small readings of objects.
package kube

import (
	v1 "k8s.io/api/core/v1"
)

// NodeReady reports whether the node's Ready condition is True. A node without
// the condition is not ready.
func NodeReady(node *v1.Node) bool {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == v1.NodeReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// VolumeInUse reports whether the kubelet still names the volume in
// node.status.volumesInUse.
func VolumeInUse(node *v1.Node, name v1.UniqueVolumeName) bool {
	for _, inUse := range node.Status.VolumesInUse {
		if inUse == name {
			return true
		}
	}
	return false
}
