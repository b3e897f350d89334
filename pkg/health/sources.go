package health

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// objects looks up what a pod's volumes are; nil where there is no such object.
type objects interface {
	claim(namespace, name string) *v1.PersistentVolumeClaim
	persistentVolume(name string) *v1.PersistentVolume
}

// podReadings reads Pod.status.volumeHealth: what the pod's kubelet says about
// the driver's volumes on the pod's node, the only node it can speak about.
// unresolved is true when a claim or volume is not known (yet), so that it is
// worth reading again once it is.
func podReadings(driver string, pod *v1.Pod, known objects, now time.Time) (readings []volume.Reading, unresolved bool) {
	if pod.Spec.NodeName == "" || kube.Finished(pod) || len(pod.Status.VolumeHealth) == 0 {
		return nil, false
	}
	for i := range pod.Status.VolumeHealth {
		entry := &pod.Status.VolumeHealth[i]
		pv, missing := volumeOfPod(pod, entry.Name, known)
		unresolved = unresolved || missing
		if pv == nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver || pv.Spec.CSI.VolumeHandle == "" {
			continue
		}
		readings = append(readings, volume.Reading{
			Key:        volume.Key{Handle: volume.Handle(pv.Spec.CSI.VolumeHandle), Node: pod.Spec.NodeName},
			Source:     volume.SourcePodStatus,
			Conditions: conditionsOf(entry.HealthConditions),
			Started:    now,
		})
	}
	return readings, unresolved
}

// volumeOfPod follows a pod's own name of a volume to the PersistentVolume.
// Every link is checked from both ends: a claim is written by the user and may
// name any volume, and only the volume's claimRef says whose it is. missing is
// true where an object is not known.
func volumeOfPod(pod *v1.Pod, name string, known objects) (pv *v1.PersistentVolume, missing bool) {
	claimName, ok := kube.ClaimNames(pod)[name]
	if !ok {
		return nil, false
	}
	claim := known.claim(pod.Namespace, claimName)
	if claim == nil || claim.Spec.VolumeName == "" {
		return nil, true
	}
	if isEphemeral(pod, name) && !metav1.IsControlledBy(claim, pod) {
		return nil, false
	}
	pv = known.persistentVolume(claim.Spec.VolumeName)
	if pv == nil {
		return nil, true
	}
	if !claims(pv, claim) {
		return nil, false
	}
	return pv, false
}

// claims reports whether the volume and the claim name each other.
func claims(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && ref.UID == claim.UID && ref.Namespace == claim.Namespace && ref.Name == claim.Name &&
		claim.Spec.VolumeName == pv.Name
}

func isEphemeral(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(vol v1.Volume) bool {
		return vol.Name == name && vol.Ephemeral != nil
	})
}

func conditionsOf(stored []v1.VolumeHealthCondition) []volume.Condition {
	var conditions []volume.Condition
	for _, c := range stored {
		conditions = append(conditions, volume.Condition{
			Kind:    kindOf(c.Status),
			Reason:  c.Reason,
			Message: c.Message,
		})
	}
	return conditions
}

func kindOf(status v1.VolumeHealthStatusType) volume.ConditionKind {
	switch status {
	case v1.VolumeHealthInaccessible:
		return volume.Inaccessible
	case v1.VolumeHealthDataLoss:
		return volume.DataLoss
	case v1.VolumeHealthDegraded:
		return volume.Degraded
	default:
		return volume.UnknownCondition
	}
}

// onNode is a volume of the driver that is attached to a node, with what a
// storage condition is filtered by.
type onNode struct {
	handle      volume.Handle
	accessModes []v1.PersistentVolumeAccessMode
	volumeMode  v1.PersistentVolumeMode
}

// csiNodeReadings reads CSINode.status.storageHealth: what the node's kubelet
// says about the driver's storage as a whole, for each of its volumes attached
// there. The kubelet takes the driver's entry away when the storage is healthy
// again, so that a missing entry of a driver which is still registered is an
// explicit answer; of one that is not registered it is an absence.
func csiNodeReadings(driver string, node *storagev1.CSINode, attached []onNode, now time.Time) []volume.Reading {
	var stored []storagev1.StorageHealthCondition
	found := slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
	for i := range node.Status.StorageHealth {
		if health := &node.Status.StorageHealth[i]; health.Name == driver {
			found, stored = true, health.HealthConditions
		}
	}
	if !found {
		return nil
	}
	readings := make([]volume.Reading, 0, len(attached))
	for _, on := range attached {
		readings = append(readings, volume.Reading{
			Key:        volume.Key{Handle: on.handle, Node: node.Name},
			Source:     volume.SourceCSINodeStatus,
			Conditions: storageConditions(stored, on),
			Started:    now,
		})
	}
	return readings
}

func storageConditions(stored []storagev1.StorageHealthCondition, on onNode) []volume.Condition {
	var conditions []volume.Condition
	for i := range stored {
		c := &stored[i]
		if c.AccessMode != nil && !slices.Contains(on.accessModes, *c.AccessMode) {
			continue
		}
		if c.VolumeMode != nil && *c.VolumeMode != on.volumeMode {
			continue
		}
		conditions = append(conditions, volume.Condition{
			Kind:    storageKindOf(c.Status),
			Reason:  c.Reason,
			Message: c.Message,
		})
	}
	return conditions
}

func storageKindOf(status storagev1.StorageHealthStatusType) volume.ConditionKind {
	switch status {
	case storagev1.StorageUnreachable:
		return volume.Inaccessible
	case storagev1.StorageDegraded:
		return volume.Degraded
	default:
		return volume.UnknownCondition
	}
}
