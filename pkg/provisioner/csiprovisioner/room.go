package csiprovisioner

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Capacity is a driver with GET_CAPACITY.
type Capacity interface {
	GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error)
}

// HasRoom asks the driver whether it could make the volume of a claim at a place
// now, with the parameters and capabilities that CreateVolume would have. What the
// driver says of the largest volume counts, and only where it says nothing, of the
// whole room: so does the scheduler. An error is the driver's, or says why the
// volume could not be made anywhere.
func (p *Provisioner) HasRoom(ctx context.Context, driver Capacity, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, at *csi.Topology) (bool, error) {
	class, _, err := p.migration.class(ctx, class)
	if err != nil {
		return false, err
	}
	size, err := requested(claim)
	if err != nil {
		return false, err
	}
	parameters, err := driverParameters(class.Name, class.Parameters)
	if err != nil {
		return false, err
	}
	fs, err := fsType(class.Name, class.Parameters, p.cfg.DefaultFSType)
	if err != nil {
		return false, err
	}
	capabilities, err := volumeCapabilities(claim, fs, class.MountOptions, p.cfg.Capabilities().SingleNodeMultiWriter)
	if err != nil {
		return false, err
	}
	bounded, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	room, err := driver.GetCapacity(bounded, &csi.GetCapacityRequest{VolumeCapabilities: capabilities, Parameters: parameters, AccessibleTopology: at})
	if err != nil {
		return false, fmt.Errorf("asking the driver for room: %w", err)
	}
	if largest := room.GetMaximumVolumeSize(); largest != nil {
		return size <= largest.GetValue(), nil
	}
	return size <= room.GetAvailableCapacity(), nil
}
