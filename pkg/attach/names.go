package attach

import (
	"slices"
	"strings"
)

// AnnotationHandle on a VolumeAttachment is the handle of the volume that it
// was published with. It is written with the intent, so that the volume can be
// unpublished though its PersistentVolume is gone or names another one.
const AnnotationHandle = "ha-sidecar.io/volume-handle"

// FinalizerName is the finalizer on VolumeAttachments and PersistentVolumes:
// external-attacher's, by its rule, so that either takes over from the other.
func FinalizerName(driver string) string { return "external-attacher/" + sanitize(driver) }

// sanitize makes a driver's name fit for a finalizer, as external-attacher does.
func sanitize(driver string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		default:
			return '-'
		}
	}, driver)
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}

func hasFinalizer(finalizers []string, name string) bool { return slices.Contains(finalizers, name) }

func without(finalizers []string, name string) []string {
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == name })
}
