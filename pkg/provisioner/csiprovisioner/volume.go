package csiprovisioner

import (
	"context"
	"errors"
	"maps"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// volumeOf makes the PersistentVolume of a volume.
func (p *Provisioner) volumeOf(ctx context.Context, in *intent, made *csi.Volume) (*v1.PersistentVolume, error) {
	pv := in.Volume.DeepCopy()
	size := made.GetCapacityBytes()
	if size == 0 {
		// CSI: the capacity is not known, and is at least what was asked for.
		size = in.Request.GetCapacityRange().GetRequiredBytes()
	}
	pv.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(size, resource.BinarySI)}
	src := pv.Spec.CSI
	src.VolumeHandle = made.GetVolumeId()
	// The driver gets its context back as it said it, whatever it calls its keys.
	if src.VolumeAttributes == nil {
		src.VolumeAttributes = map[string]string{}
	}
	maps.Copy(src.VolumeAttributes, made.GetVolumeContext())
	if in.Topology {
		if err := topology.Check(made.GetAccessibleTopology()); err != nil {
			return nil, errors.New(quoted(err.Error()))
		}
		pv.Spec.NodeAffinity = topology.NodeAffinity(made.GetAccessibleTopology())
	}
	if in.Migrated {
		return p.migration.toInTree(ctx, pv)
	}
	return pv, nil
}
