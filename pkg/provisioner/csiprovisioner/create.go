package csiprovisioner

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// create makes the request of an intent and takes its answer.
func (p *Provisioner) create(ctx context.Context, in *intent, secrets map[string]string) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	request, ok := proto.Clone(in.Request).(*csi.CreateVolumeRequest)
	if !ok {
		return nil, provisioner.ProvisioningNoChange, errors.New("cloning a request gave another type")
	}
	request.Secrets = secrets
	bounded, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	response, err := p.cfg.Driver.CreateVolume(bounded, request)
	if err != nil {
		return nil, p.createFailed(in, err, secrets == nil && in.Secret != nil), err
	}
	in.tried = true
	made := response.GetVolume()
	if made.GetVolumeId() == "" {
		return nil, provisioner.ProvisioningInBackground, fmt.Errorf("driver %s answered CreateVolume %s without a volume ID; this is a fault of the driver, and the volume may exist", p.cfg.DriverName, request.Name)
	}
	if problem := checkReply(in.Request, made); problem != nil {
		return p.deleteStray(ctx, in, made, secrets, problem)
	}
	pv, err := p.volumeOf(ctx, in, made)
	if err != nil {
		return nil, provisioner.ProvisioningInBackground, err
	}
	return pv, provisioner.ProvisioningFinished, nil
}

// createFailed tells what a failed call leaves behind, and forgets the intent
// where that is nothing.
func (p *Provisioner) createFailed(in *intent, err error, otherRequest bool) provisioner.ProvisioningState {
	switch outcome := volume.OutcomeOf(err); {
	case outcome == volume.OutcomeRetry && !in.tried:
		// Not sent. The claim may change before it is tried again.
		p.Settle(in.Claim.UID)
		return provisioner.ProvisioningNoChange
	case outcome == volume.OutcomeRetry:
		return provisioner.ProvisioningNoChange
	case outcome != volume.OutcomeFinal, otherRequest, in.tried && !provesNothingMade(err):
		in.tried = true
		return provisioner.ProvisioningInBackground
	}
	p.Settle(in.Claim.UID)
	if in.Topology && in.Request.AccessibilityRequirements != nil && status.Code(err) == codes.ResourceExhausted {
		return provisioner.ProvisioningReschedule
	}
	return provisioner.ProvisioningFinished
}

// provesNothingMade reports whether a refusal speaks also of earlier calls with the
// same request, which may have made the volume: had they, it would have been
// found. Whoever is not let in has not been looked for.
func provesNothingMade(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented:
		return false
	default:
		return true
	}
}

// checkReply tells what makes a volume useless for its claim.
func checkReply(request *csi.CreateVolumeRequest, made *csi.Volume) error {
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

// deleteStray deletes a volume that was made and is not what was asked for.
func (p *Provisioner) deleteStray(ctx context.Context, in *intent, made *csi.Volume, secrets map[string]string, problem error) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	bounded, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	_, err := p.cfg.Driver.DeleteVolume(bounded, &csi.DeleteVolumeRequest{VolumeId: made.VolumeId, Secrets: secrets})
	if err != nil {
		return nil, provisioner.ProvisioningInBackground, fmt.Errorf("%w; deleting volume %s again: %w; it is tried again", problem, made.VolumeId, err)
	}
	klog.FromContext(ctx).Info("Deleted a volume that was not as asked for", "volume", made.VolumeId, "reason", problem.Error())
	p.Settle(in.Claim.UID)
	return nil, provisioner.ProvisioningFinished, fmt.Errorf("%w; volume %s is deleted again", problem, made.VolumeId)
}
