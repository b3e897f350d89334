package provisioner

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// attached says by what the volume of a PersistentVolume is attached, or empty.
// CSI forbids to delete a volume that is published.
func (ctrl *ProvisionController) attached(pv *v1.PersistentVolume) (string, error) {
	if !ctrl.guardAttached {
		return "", nil
	}
	sources, err := ctrl.sourcesOf(pv)
	if err != nil {
		return "", err
	}
	for _, source := range sources {
		found, err := ctrl.attachmentInformer.GetIndexer().ByIndex(bySource, source)
		if err != nil {
			return "", fmt.Errorf("looking for VolumeAttachments of PersistentVolume %s: %w", pv.Name, err)
		}
		for _, obj := range found {
			if va, ok := obj.(*storagev1.VolumeAttachment); ok {
				return fmt.Sprintf("VolumeAttachment %s attaches it to node %s", va.Name, va.Spec.NodeName), nil
			}
		}
	}
	if ctrl.holds != nil && pv.Spec.CSI != nil && ctrl.holds(volume.Handle(pv.Spec.CSI.VolumeHandle)) {
		return "it is not certain that it is detached from all nodes", nil
	}
	return "", nil
}

// sourcesOf lists by what a VolumeAttachment may name the volume: any
// PersistentVolume of it, or itself.
func (ctrl *ProvisionController) sourcesOf(pv *v1.PersistentVolume) ([]string, error) {
	sources := []string{pvSource(pv.Name)}
	if pv.Spec.CSI == nil {
		return sources, nil
	}
	same, err := ctrl.withVolumeOf(pv)
	if err != nil {
		return nil, err
	}
	for _, other := range same {
		sources = append(sources, pvSource(other.Name))
	}
	slices.Sort(sources)
	return append(slices.Compact(sources), csiName(pv.Spec.CSI)), nil
}

// onAttachmentGone wakes deletions that waited for it.
func (ctrl *ProvisionController) onAttachmentGone(va *storagev1.VolumeAttachment) {
	switch src := va.Spec.Source; {
	case src.PersistentVolumeName != nil:
		ctrl.wakePV(*src.PersistentVolumeName)
	case src.InlineVolumeSpec != nil && src.InlineVolumeSpec.CSI != nil:
		ctrl.wakeVolume(csiName(src.InlineVolumeSpec.CSI))
	}
}

// Released wakes the deletion of a volume that was held, see
// WithVolumeAttachments.
func (ctrl *ProvisionController) Released(handle volume.Handle) {
	select {
	case <-ctrl.queues:
		ctrl.wakeVolume(string(volume.UniqueName(ctrl.name, handle)))
	default: // nothing waits yet
	}
}

// wakePV wakes every PersistentVolume of the same volume as this one.
func (ctrl *ProvisionController) wakePV(name string) {
	pv, err := ctrl.volumes.Get(name)
	switch {
	case err != nil:
	case pv.Spec.CSI != nil:
		ctrl.wakeVolume(csiName(pv.Spec.CSI))
	default:
		ctrl.wake(pv)
	}
}

// wakeVolume wakes every PersistentVolume of a CSI volume.
func (ctrl *ProvisionController) wakeVolume(name string) {
	found, err := ctrl.volumeInformer.GetIndexer().ByIndex(byHandle, name)
	if err != nil {
		return // there is such an index
	}
	for _, obj := range found {
		if pv, ok := obj.(*v1.PersistentVolume); ok {
			ctrl.wake(pv)
		}
	}
}

func (ctrl *ProvisionController) wake(pv *v1.PersistentVolume) {
	if ctrl.rules.shouldDelete(pv) {
		ctrl.deletions.renew(pv.Name)
	}
}
