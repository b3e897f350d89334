package provisioner

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// rules are what the decisions go by.
type rules struct {
	// names are ours: the provisioner's own, then those that it also answers to.
	names []string
	// server is the API server's version; nil: today's.
	server *version.Version
	// finalizer: PersistentVolumes are to have ours.
	finalizer bool
}

// before reports whether the server is older than a version.
func (r rules) before(minor uint) bool {
	return r.server != nil && r.server.LessThan(version.MajorMinor(1, minor))
}

func (r rules) ours(name string) bool { return name != "" && slices.Contains(r.names, name) }

// className is the class of a claim; empty: none.
func className(claim *v1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[annotationStorageClass]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

// selectedNode is the node that the scheduler chose for a claim, or empty.
func selectedNode(claim *v1.PersistentVolumeClaim) string {
	if node, ok := claim.Annotations[AnnotationSelectedNode]; ok {
		return node
	}
	return claim.Annotations[annotationAlphaSelectedNode]
}

// StorageProvisioner is who a claim is to be provisioned by, or empty.
func StorageProvisioner(claim *v1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[AnnotationStorageProvisioner]; ok {
		return name
	}
	return claim.Annotations[annotationBetaStorageProvisioner]
}

// addressed reports whether a claim is for us to provision, as far as it tells
// itself: kube-controller-manager names the provisioner once no existing volume
// suits the claim. Before Kubernetes 1.5 the class alone tells.
func (r rules) addressed(claim *v1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName != "" {
		return false
	}
	return r.before(5) || r.ours(StorageProvisioner(claim)) || r.ours(claim.Annotations[AnnotationMigratedTo])
}

// mayProvision reports whether a claim that is addressed to us may be provisioned
// now; class is nil where there is none of its name.
func (r rules) mayProvision(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	switch {
	case class == nil:
		return false
	case r.before(5):
		return r.ours(class.Provisioner)
	case class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
		return selectedNode(claim) != ""
	default:
		return true
	}
}

// ourVolume reports whether a PersistentVolume is ours to look after: we
// provisioned it, or it was made by hand for our driver, or has moved to it.
func (r rules) ourVolume(pv *v1.PersistentVolume) bool {
	if r.ours(pv.Annotations[AnnotationMigratedTo]) {
		return true
	}
	if by, ok := pv.Annotations[AnnotationProvisionedBy]; ok {
		return r.ours(by)
	}
	return r.finalizer && pv.Spec.CSI != nil && r.ours(pv.Spec.CSI.Driver)
}

// shouldDelete reports whether the volume of a PersistentVolume is to be deleted.
func (r rules) shouldDelete(pv *v1.PersistentVolume) bool {
	released := pv.Status.Phase == v1.VolumeReleased || r.before(5) && pv.Status.Phase == v1.VolumeFailed
	if !released || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete || !r.ourVolume(pv) {
		return false
	}
	// One that is going without our finalizer has had its volume deleted, or was
	// taken out of our hands.
	return pv.DeletionTimestamp == nil || r.finalizer && hasFinalizer(pv)
}

// finalizerChange is what is to be done about our finalizer.
type finalizerChange int

const (
	keepFinalizer finalizerChange = iota
	putFinalizer
	takeFinalizer
)

// finalizerFor decides about our finalizer on a PersistentVolume: one whose volume
// goes with it has it, one that is retained has not.
func (r rules) finalizerFor(pv *v1.PersistentVolume) finalizerChange {
	if !r.ourVolume(pv) && !(hasFinalizer(pv) && r.provisionedByUs(pv)) {
		return keepFinalizer
	}
	goes := r.finalizer && pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete
	switch {
	case !goes && hasFinalizer(pv):
		return takeFinalizer
	case goes && !hasFinalizer(pv) && pv.DeletionTimestamp == nil && pv.Status.Phase == v1.VolumeBound:
		return putFinalizer
	default:
		return keepFinalizer
	}
}

// provisionedByUs is ourVolume without regard to whether we add finalizers.
func (r rules) provisionedByUs(pv *v1.PersistentVolume) bool {
	return pv.Spec.CSI != nil && r.ours(pv.Spec.CSI.Driver)
}

func hasFinalizer(pv *v1.PersistentVolume) bool { return slices.Contains(pv.Finalizers, Finalizer) }
