package source

import (
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	testDriver  = "csi.example.com"
	otherDriver = "csi.other.example.com"
)

func ptr[T any](v T) *T { return &v }

func storage(size string) v1.VolumeResourceRequirements {
	return v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}}
}

// pending is a claim that waits for a volume made of nothing.
func pending(name string) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
		Spec:       v1.PersistentVolumeClaimSpec{StorageClassName: ptr("fast"), Resources: storage("2Gi")},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
}

// of makes the claim one of a source, as the API server completes it.
func of(claim *v1.PersistentVolumeClaim, kind Kind, name string) *v1.PersistentVolumeClaim {
	var group *string
	if kind == Snapshot {
		group = ptr(snapshotGroup)
	}
	claim.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: group, Kind: string(kind), Name: name}
	claim.Spec.DataSourceRef = &v1.TypedObjectReference{APIGroup: group, Kind: string(kind), Name: name}
	return claim
}

// restore and clone are claims of the objects below.
func restore(name string) *v1.PersistentVolumeClaim { return of(pending(name), Snapshot, "snap") }
func clone(name string) *v1.PersistentVolumeClaim   { return of(pending(name), Claim, "src") }

func snapshot() *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "snap", UID: "snap-uid"},
		Status: &snapshotv1.VolumeSnapshotStatus{
			BoundVolumeSnapshotContentName: ptr("content"), ReadyToUse: ptr(true), RestoreSize: ptr(resource.MustParse("1Gi")),
		},
	}
}

func content() *snapshotv1.VolumeSnapshotContent {
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "content", UID: "content-uid"},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			Driver:            testDriver,
			VolumeSnapshotRef: v1.ObjectReference{Namespace: "ns", Name: "snap", UID: "snap-uid"},
		},
		Status: &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: ptr("sid"), ReadyToUse: ptr(true)},
	}
}

func sourceClaim() *v1.PersistentVolumeClaim {
	src := pending("src")
	src.Spec.StorageClassName, src.Spec.VolumeName, src.Spec.Resources = ptr("slow"), "pv", storage("1Gi")
	src.Status.Phase = v1.ClaimBound
	src.Finalizers = []string{"kubernetes.io/pvc-protection"}
	return src
}

func sourceVolume() *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv-uid"},
		Spec: v1.PersistentVolumeSpec{
			ClaimRef:               &v1.ObjectReference{Namespace: "ns", Name: "src", UID: "claim-src"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "vid"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
}

// terminating marks an object as being deleted; with a finalizer, as the API has it.
func terminating(meta *metav1.ObjectMeta, finalizers ...string) {
	meta.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	meta.Finalizers = append(meta.Finalizers, finalizers...)
}

var (
	snapID = id{"volumesnapshots", "ns", "snap"}
	srcID  = id{"persistentvolumeclaims", "ns", "src"}

	snapRef = Ref{Snapshot, "ns", "snap", "snap-uid"}
	srcRef  = Ref{Claim, "ns", "src", "claim-src"}
)

func claimID(name string) id { return id{"persistentvolumeclaims", "ns", name} }
