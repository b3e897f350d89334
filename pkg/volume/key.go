package volume

import (
	v1 "k8s.io/api/core/v1"
)

// Handle is the identifier that the driver gave a volume: volume_id of the CSI
// spec, spec.csi.volumeHandle of a PersistentVolume. It is opaque: never parsed,
// never made part of a path.
type Handle string

// Key names a volume on a node. An empty Node means "seen from the controller
// plugin", and so from every node.
type Key struct {
	Handle Handle `json:"volume"`
	Node   string `json:"node,omitempty"`
}

// Everywhere reports whether k speaks of the volume and not of one node's way
// to it.
func (k Key) Everywhere() bool { return k.Node == "" }

// UniqueName is the name under which Kubernetes lists the volume in
// node.status.volumesAttached and node.status.volumesInUse.
func UniqueName(driver string, handle Handle) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + string(handle))
}

// Exclusive reports whether a PersistentVolume may be published to one node
// only: every access mode that it lists is ReadWriteOnce or ReadWriteOncePod.
// A volume that lists no mode is taken for exclusive, since not knowing must
// not let two nodes write.
func Exclusive(pv *v1.PersistentVolume) bool {
	for _, mode := range pv.Spec.AccessModes {
		if mode != v1.ReadWriteOnce && mode != v1.ReadWriteOncePod {
			return false
		}
	}
	return true
}
