package csiprovisioner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	// maxReply bounds what a driver may say of a volume, in bytes. etcd takes
	// objects of 1.5 MiB: a PersistentVolume that is larger could never be saved,
	// and CSI allows 4 KiB for the largest of the fields.
	maxReply = 1 << 20
	// maxQuoted bounds what of it is quoted to people.
	maxQuoted = 1 << 10
)

// quoted makes what a driver says fit for an event.
func quoted(text string) string {
	if len(text) <= maxQuoted {
		return text
	}
	return strings.ToValidUTF8(text[:maxQuoted], "") + "..."
}

// checkReply tells what makes a volume useless for its claim.
func checkReply(request *csi.CreateVolumeRequest, made *csi.Volume) error {
	if size := proto.Size(made); size > maxReply {
		return fmt.Errorf("the driver said %d bytes about the volume, more than the %d that a PersistentVolume could hold", size, maxReply)
	}
	wanted := request.GetCapacityRange().GetRequiredBytes()
	switch size := made.GetCapacityBytes(); {
	case size < 0:
		return fmt.Errorf("the driver made a volume of %d bytes", size)
	case size != 0 && size < wanted:
		return fmt.Errorf("the driver made a volume of %d bytes, fewer than the %d that the claim asks for", size, wanted)
	}
	if request.GetVolumeContentSource() != nil && made.GetContentSource() == nil {
		return errors.New("the driver made an empty volume, not a copy of the data source: it does not say content_source")
	}
	return nil
}

// deleteStray deletes a volume that was made and that the claim cannot have. If
// that fails, the same request finds it again.
func (p *Provisioner) deleteStray(ctx context.Context, in *intent, made *csi.Volume, secrets map[string]string, problem error) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	id := quoted(made.GetVolumeId())
	other, err := p.standsFor(ctx, made.GetVolumeId())
	if err != nil {
		return nil, provisioner.ProvisioningInBackground, fmt.Errorf("%w; volume %s is not deleted: %w", problem, id, err)
	}
	if other != "" {
		// It was there before, under this name, and somebody has data on it.
		p.Settle(in.Claim.UID)
		return nil, provisioner.ProvisioningFinished, fmt.Errorf("%w; volume %s is that of PersistentVolume %s, and so is not deleted: this is a fault of the driver, or two claims have one volume name", problem, id, other)
	}
	bounded, cancel := context.WithTimeout(volume.WithMigrated(ctx, in.Migrated), p.cfg.Timeout)
	defer cancel()
	if _, err := p.cfg.Driver.DeleteVolume(bounded, &csi.DeleteVolumeRequest{VolumeId: made.GetVolumeId(), Secrets: secrets}); err != nil {
		return nil, provisioner.ProvisioningInBackground, fmt.Errorf("%w; deleting volume %s again: %w; it is tried again", problem, id, err)
	}
	klog.FromContext(ctx).Info("Deleted a volume that was not as asked for", "volume", id, "reason", problem.Error())
	p.Settle(in.Claim.UID)
	return nil, provisioner.ProvisioningFinished, fmt.Errorf("%w; volume %s is deleted again", problem, id)
}

// standsFor is the name of a PersistentVolume that stands for a volume, or empty.
func (p *Provisioner) standsFor(ctx context.Context, handle string) (string, error) {
	pvs, err := p.cfg.Volumes.List(labels.Everything())
	if err != nil {
		return "", fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	for _, pv := range pvs {
		if pv.Spec.CSI == nil && p.migration.inTree == "" {
			continue
		}
		csiPV, err := p.migration.toCSI(ctx, pv)
		if err != nil {
			continue // of another plugin, or of none that has moved
		}
		if src := csiPV.Spec.CSI; src != nil && src.Driver == p.cfg.DriverName && src.VolumeHandle == handle {
			return pv.Name, nil
		}
	}
	return "", nil
}
