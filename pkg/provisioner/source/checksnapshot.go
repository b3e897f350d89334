package source

import (
	"fmt"
	"slices"
	"strconv"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	v1 "k8s.io/api/core/v1"
)

// snapshotChecks are the rules for a snapshot as a source.
type snapshotChecks struct {
	// provisioner is the CSI driver of the claim's class.
	provisioner string
	// keepMode: a volume has the mode of the one that the snapshot was taken of,
	// unless the content says otherwise.
	keepMode bool
}

// bound checks what the snapshot alone tells, and returns the name of its content.
func (snapshotChecks) bound(snap *snapshotv1.VolumeSnapshot) (content string, err error) {
	name := key{Snapshot, snap.Namespace, snap.Name}
	if snap.DeletionTimestamp != nil && !slices.Contains(snap.Finalizers, SnapshotFinalizer) {
		return "", &Refused{
			What: fmt.Sprintf("%s is being deleted", name),
			Do:   "make the claim again with another data source",
		}
	}
	if snap.Status == nil || snap.Status.BoundVolumeSnapshotContentName == nil || *snap.Status.BoundVolumeSnapshotContentName == "" {
		return "", fmt.Errorf("%s is not bound to a VolumeSnapshotContent yet; see its status and events", name)
	}
	return *snap.Status.BoundVolumeSnapshotContentName, nil
}

// handle checks a snapshot with its content against the claim, and returns the
// snapshot's ID at the driver.
func (c snapshotChecks) handle(claim *v1.PersistentVolumeClaim, snap *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) (string, error) {
	name := key{Snapshot, snap.Namespace, snap.Name}
	if content.Spec.Driver != c.provisioner {
		return "", &Refused{
			What: fmt.Sprintf("VolumeSnapshotContent %s of %s is of the CSI driver %s, and the claim's StorageClass of %s", content.Name, name, content.Spec.Driver, c.provisioner),
			Do:   fmt.Sprintf("make the claim again with a StorageClass of %s", content.Spec.Driver),
		}
	}
	if err := boundBack(snap, content); err != nil {
		return "", err
	}
	if snap.Status.ReadyToUse == nil || !*snap.Status.ReadyToUse {
		return "", fmt.Errorf("%s is not ready to use yet; see its status and events", name)
	}
	if content.Status == nil || content.Status.SnapshotHandle == nil || *content.Status.SnapshotHandle == "" {
		return "", fmt.Errorf("VolumeSnapshotContent %s of %s has no status.snapshotHandle yet; see its status and events", content.Name, name)
	}
	requested := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if size := snap.Status.RestoreSize; size != nil && requested.Value() < size.Value() {
		return "", &Refused{
			What: fmt.Sprintf("the claim requests %s, and %s needs %s", requested.String(), name, size.String()),
			Do:   fmt.Sprintf("make the claim again with spec.resources.requests.storage of at least %s", size.String()),
		}
	}
	if err := c.mode(claim, content); err != nil {
		return "", err
	}
	return *content.Status.SnapshotHandle, nil
}

// boundBack checks that the content names the snapshot too. Without that, anybody
// who may write a VolumeSnapshot could read the snapshots of others.
func boundBack(snap *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) error {
	back := content.Spec.VolumeSnapshotRef
	if back.Namespace == snap.Namespace && back.Name == snap.Name {
		switch back.UID {
		case snap.UID:
			return nil
		case "":
			return fmt.Errorf("VolumeSnapshotContent %s is not bound to VolumeSnapshot %s/%s yet; see their status and events", content.Name, snap.Namespace, snap.Name)
		}
	}
	return &Refused{
		What: fmt.Sprintf("VolumeSnapshotContent %s is bound to VolumeSnapshot %s/%s (UID %s), and not to %s/%s (UID %s)",
			content.Name, back.Namespace, back.Name, back.UID, snap.Namespace, snap.Name, snap.UID),
		Do: "make the claim again with a snapshot that is bound",
	}
}

// mode checks that the new volume has the mode of the one that was snapshotted.
func (c snapshotChecks) mode(claim *v1.PersistentVolumeClaim, content *snapshotv1.VolumeSnapshotContent) error {
	if !c.keepMode || content.Spec.SourceVolumeMode == nil {
		return nil
	}
	from, to := *content.Spec.SourceVolumeMode, modeOf(claim.Spec.VolumeMode)
	if from == to {
		return nil
	}
	text := content.Annotations[AnnotationAllowModeChange]
	if allowed, err := strconv.ParseBool(text); err == nil && allowed {
		return nil
	}
	return &Refused{
		What: fmt.Sprintf("the claim's volumeMode is %s, and VolumeSnapshotContent %s is of a volume with volumeMode %s", to, content.Name, from),
		Do: fmt.Sprintf("make the claim again with volumeMode %s, or, if the data may be read so, set the content's annotation %s, which is %q, to \"true\"",
			from, AnnotationAllowModeChange, text),
	}
}

// modeOf is the volume mode, which is Filesystem where none is given.
func modeOf(mode *v1.PersistentVolumeMode) v1.PersistentVolumeMode {
	if mode == nil {
		return v1.PersistentVolumeFilesystem
	}
	return *mode
}
