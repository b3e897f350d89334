package source

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
)

// checkSourceClaim checks a claim that is to be cloned, as far as it alone tells.
func checkSourceClaim(claim, src *v1.PersistentVolumeClaim) error {
	name := key{Claim, src.Namespace, src.Name}
	switch {
	case src.DeletionTimestamp != nil:
		return &Refused{
			What: fmt.Sprintf("%s is being deleted", name),
			Do:   "delete this claim, which may keep it from going, and make it again with another data source",
		}
	case claim.Spec.StorageClassName == nil:
		return &Refused{
			What: fmt.Sprintf("the claim has no spec.storageClassName, without which %s cannot be cloned", name),
			Do:   "make the claim again with one",
		}
	case src.Spec.StorageClassName == nil:
		return &Refused{
			What: fmt.Sprintf("%s has no spec.storageClassName, without which it cannot be cloned", name),
			Do:   "make the claim again with another data source",
		}
	case src.Status.Phase == v1.ClaimLost:
		return &Refused{
			What: fmt.Sprintf("%s has lost its PersistentVolume %s", name, src.Spec.VolumeName),
			Do:   "make the claim again with another data source",
		}
	case src.Status.Phase != v1.ClaimBound || src.Spec.VolumeName == "":
		return fmt.Errorf("%s is not bound yet; see its events", name)
	}
	requested, size := claim.Spec.Resources.Requests[v1.ResourceStorage], src.Spec.Resources.Requests[v1.ResourceStorage]
	if requested.Cmp(size) < 0 {
		return &Refused{
			What: fmt.Sprintf("the claim requests %s, and %s has %s", requested.String(), name, size.String()),
			Do:   fmt.Sprintf("make the claim again with spec.resources.requests.storage of at least %s", size.String()),
		}
	}
	if from, to := modeOf(src.Spec.VolumeMode), modeOf(claim.Spec.VolumeMode); from != to {
		return &Refused{
			What: fmt.Sprintf("the claim's volumeMode is %s, and that of %s is %s", to, name, from),
			Do:   fmt.Sprintf("make the claim again with volumeMode %s", from),
		}
	}
	return nil
}

// checkSourceVolume checks the volume of a claim that is to be cloned, and returns
// its handle. The volume must name the claim too: a claim's spec.volumeName
// alone is what anybody may have written there.
func checkSourceVolume(src *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, provisioner string) (string, error) {
	name := key{Claim, src.Namespace, src.Name}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != provisioner {
		driver := "no CSI driver"
		if pv.Spec.CSI != nil {
			driver = "the CSI driver " + pv.Spec.CSI.Driver
		}
		return "", &Refused{
			What: fmt.Sprintf("PersistentVolume %s of %s is of %s, and the claim's StorageClass of %s", pv.Name, name, driver, provisioner),
			Do:   "make the claim again with a StorageClass of the source's driver, or with another data source",
		}
	}
	ref := pv.Spec.ClaimRef
	if ref == nil || ref.Namespace != src.Namespace || ref.Name != src.Name || ref.UID != src.UID {
		return "", &Refused{
			What: fmt.Sprintf("PersistentVolume %s is not bound to %s, whose spec.volumeName names it", pv.Name, name),
			Do:   "make the claim again with another data source",
		}
	}
	if pv.Status.Phase != v1.VolumeBound {
		return "", fmt.Errorf("PersistentVolume %s of %s is %s and not Bound yet; see the events of both", pv.Name, name, pv.Status.Phase)
	}
	if pv.Spec.CSI.VolumeHandle == "" {
		return "", fmt.Errorf("PersistentVolume %s of %s has no volumeHandle", pv.Name, name)
	}
	return pv.Spec.CSI.VolumeHandle, nil
}
