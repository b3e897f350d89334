package provisioner

import v1 "k8s.io/api/core/v1"

// ClassName is the class of a claim, by the annotation of old or its spec; empty:
// none.
func ClassName(claim *v1.PersistentVolumeClaim) string { return className(claim) }

// SelectedNode is the node that was selected for a claim; empty: none yet.
func SelectedNode(claim *v1.PersistentVolumeClaim) string { return selectedNode(claim) }
