package attach

import (
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// inlinePrefix begins the names of sources that are in the VolumeAttachment
// itself; no PersistentVolume has such a name.
const inlinePrefix = "inline:"

// sourceName names what a VolumeAttachment attaches: a PersistentVolume, or the
// volume that is written into the VolumeAttachment, by its UID.
func sourceName(va *storagev1.VolumeAttachment) string {
	if va.Spec.Source.InlineVolumeSpec != nil {
		return inlinePrefix + string(va.UID)
	}
	return pvName(va)
}

// source finds what sourceName names, in the form that CSI has for it. A volume
// that is written into a VolumeAttachment comes without a name.
func (c *Controller) source(name string) (*v1.PersistentVolume, error) {
	if uid, ok := strings.CutPrefix(name, inlinePrefix); ok {
		va, _, _, known := c.ledger.lookup(types.UID(uid))
		if !known {
			return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
		}
		return inline(va)
	}
	pv, err := c.pvs.Get(name)
	if err != nil {
		return nil, err
	}
	return c.translated(pv)
}

// sourceOf is source for a VolumeAttachment that need not be known yet.
func (c *Controller) sourceOf(va *storagev1.VolumeAttachment) (*v1.PersistentVolume, error) {
	src := va.Spec.Source
	switch {
	case (src.PersistentVolumeName == nil) == (src.InlineVolumeSpec == nil):
		return nil, errors.New("spec.source must name exactly one of persistentVolumeName and inlineVolumeSpec")
	case src.InlineVolumeSpec != nil:
		return inline(va)
	default:
		return c.source(*src.PersistentVolumeName)
	}
}

// inline makes a volume that is written into a VolumeAttachment look like a
// PersistentVolume. kube-controller-manager writes those of in-tree plugins that
// were migrated to CSI, translated already.
func inline(va *storagev1.VolumeAttachment) (*v1.PersistentVolume, error) {
	spec := va.Spec.Source.InlineVolumeSpec
	if spec == nil || spec.CSI == nil {
		return nil, errors.New("spec.source.inlineVolumeSpec names no CSI volume")
	}
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{UID: va.UID}, Spec: *spec}, nil
}

func isInline(pv *v1.PersistentVolume) bool { return pv.Name == "" }

// translated gives a PersistentVolume of an in-tree plugin that was migrated to
// CSI the form of a CSI volume.
func (c *Controller) translated(pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	translator := csitranslation.New()
	if pv.Spec.CSI != nil || !translator.IsPVMigratable(pv) {
		return pv, nil
	}
	csiPV, err := translator.TranslateInTreePVToCSI(klog.Background(), pv.DeepCopy())
	if err != nil {
		return nil, fmt.Errorf("translating the in-tree volume of PersistentVolume %s for CSI: %w", pv.Name, err)
	}
	return csiPV, nil
}

// marked notes in ctx whether the volume that sourceName names is an in-tree
// plugin's: the metric of the call to the driver tells it.
func (c *Controller) marked(ctx context.Context, name string) context.Context {
	pv, err := c.pvs.Get(name)
	return volume.WithMigrated(ctx, err == nil && pv.Spec.CSI == nil)
}

// listedAs is the handle by which the driver lists a volume: that of a migrated
// one may leave open what the driver knows, such as the zone.
func (c *Controller) listedAs(h volume.Handle, nodeID string) volume.Handle {
	translator := csitranslation.New()
	if !translator.IsMigratedCSIDriverByName(c.cfg.DriverName) {
		return h
	}
	repaired, err := translator.RepairVolumeHandle(c.cfg.DriverName, string(h), nodeID)
	if err != nil {
		return h // of another form than the translation's, and so the driver's own
	}
	return volume.Handle(repaired)
}
