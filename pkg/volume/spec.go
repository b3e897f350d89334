package volume

import (
	"errors"

	v1 "k8s.io/api/core/v1"
)

// Spec says which volume is meant: exactly one of its fields is set.
type Spec struct {
	// PersistentVolume is the volume's API object. It is kept, not copied: it
	// must not be changed any more.
	PersistentVolume *v1.PersistentVolume
	// InlineVolumeSpec is spec.source.inlineVolumeSpec of a VolumeAttachment: a
	// volume that a pod names itself, and that has no PersistentVolume.
	InlineVolumeSpec *v1.PersistentVolumeSpec
}

// Name is the name of the PersistentVolume, or empty for an inline volume.
func (s *Spec) Name() string {
	if s == nil || s.PersistentVolume == nil {
		return ""
	}
	return s.PersistentVolume.Name
}

// csi is the CSI source of the volume, or why there is none.
func (s *Spec) csi() (*v1.CSIPersistentVolumeSource, error) {
	var source *v1.CSIPersistentVolumeSource
	switch {
	case s == nil || s.PersistentVolume == nil && s.InlineVolumeSpec == nil:
		return nil, errors.New("the spec names no volume")
	case s.PersistentVolume != nil && s.InlineVolumeSpec != nil:
		return nil, errors.New("the spec names a PersistentVolume and an inline volume")
	case s.PersistentVolume != nil:
		source = s.PersistentVolume.Spec.CSI
	default:
		source = s.InlineVolumeSpec.CSI
	}
	switch {
	case source == nil:
		return nil, errors.New("it is not a CSI volume")
	case source.Driver == "" || source.VolumeHandle == "":
		return nil, errors.New("its CSI source lacks the driver or the volume handle")
	}
	return source, nil
}
