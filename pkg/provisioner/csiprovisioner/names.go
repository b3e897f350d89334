package csiprovisioner

// Names on PersistentVolumes; they are external-provisioner's.
const (
	annotationDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"      //nolint:gosec // a name, not a secret
	annotationDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace" //nolint:gosec // a name, not a secret
	annotationModifySecretName        = "volume.kubernetes.io/controller-modify-secret-name"         //nolint:gosec // a name, not a secret
	annotationModifySecretNamespace   = "volume.kubernetes.io/controller-modify-secret-namespace"    //nolint:gosec // a name, not a secret

	attributeIdentity = "storage.kubernetes.io/csiProvisionerIdentity"
)
