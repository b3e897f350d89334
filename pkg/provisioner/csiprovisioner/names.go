package csiprovisioner

// Names on PersistentVolumes; they are external-provisioner's.
const (
	annotationDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	annotationDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	annotationModifySecretName        = "volume.kubernetes.io/controller-modify-secret-name"
	annotationModifySecretNamespace   = "volume.kubernetes.io/controller-modify-secret-namespace"

	attributeIdentity = "storage.kubernetes.io/csiProvisionerIdentity"
)
