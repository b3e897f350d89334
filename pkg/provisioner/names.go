package provisioner

// Finalizer keeps a PersistentVolume until its volume is deleted. The name is
// external-provisioner's.
const Finalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// Annotations; the names are those of Kubernetes.
const (
	// AnnotationStorageProvisioner on a claim names who is to provision it; it is
	// set by kube-controller-manager.
	AnnotationStorageProvisioner     = "volume.kubernetes.io/storage-provisioner"
	annotationBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnotationSelectedNode on a claim is the scheduler's choice of a node.
	AnnotationSelectedNode      = "volume.kubernetes.io/selected-node"
	annotationAlphaSelectedNode = "volume.alpha.kubernetes.io/selected-node"
	// AnnotationProvisionedBy on a PersistentVolume names who provisioned it.
	AnnotationProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnotationMigratedTo names the CSI driver that an in-tree volume has moved to.
	AnnotationMigratedTo = "pv.kubernetes.io/migrated-to"

	annotationStorageClass = "volume.beta.kubernetes.io/storage-class"
)

// Reasons of events; the names are external-provisioner's.
const (
	ReasonProvisioning        = "Provisioning"
	ReasonProvisioned         = "ProvisioningSucceeded"
	ReasonProvisioningFailed  = "ProvisioningFailed"
	ReasonCleanupFailed       = "ProvisioningCleanupFailed"
	ReasonVolumeFailedDelete  = "VolumeFailedDelete"
	ReasonVolumeDelete        = "VolumeDelete"
	ReasonVolumeDeleteRefused = "VolumeDeleteRefused"
	// Ours: a data source cannot be kept; records of the journal cannot be read.
	ReasonSourceUnprotected = "SourceUnprotected"
	ReasonJournalUnreadable = "JournalUnreadable"
)
