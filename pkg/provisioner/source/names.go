package source

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Names that external-provisioner and external-snapshotter use; they must stay.
const (
	// SnapshotFinalizer on a VolumeSnapshot: a volume is being made of it.
	SnapshotFinalizer = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// CloneFinalizer on a PersistentVolumeClaim: its volume is or was cloned.
	CloneFinalizer = "provisioner.storage.kubernetes.io/cloning-protection"
	// AnnotationAllowModeChange on a VolumeSnapshotContent, "true": a volume of
	// another volumeMode may be made of it.
	AnnotationAllowModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
)

// PopulatorMessage is the message of the event on a claim whose source is Foreign.
const PopulatorMessage = "Assuming an external populator will provision the volume"

const snapshotGroup = "snapshot.storage.k8s.io"

// Annotations that say whose a claim or a PersistentVolume is.
const (
	annProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annBetaProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	annMigratedTo      = "pv.kubernetes.io/migrated-to"
)

var (
	snapshotResource = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshots"}
	contentResource  = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotcontents"}
	claimResource    = v1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	volumeResource   = v1.SchemeGroupVersion.WithResource("persistentvolumes")
)
