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

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// attempt is what is of now, and not of the intent, about a call.
type attempt struct {
	secrets map[string]string
	// without: the secret of the intent is gone, and the call is made without.
	without bool
	// selectedNode is the scheduler's choice now, or empty.
	selectedNode string
	// tried: a call before this one may have made the volume.
	tried bool
}

// create makes the request of an intent and takes its answer.
func (p *Provisioner) create(ctx context.Context, in *intent, a attempt) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	request, ok := proto.Clone(in.Request).(*csi.CreateVolumeRequest)
	if !ok {
		return nil, provisioner.ProvisioningNoChange, errors.New("cloning a request gave another type")
	}
	request.Secrets = a.secrets
	// However this call ends, and if it panics, the volume may exist.
	a.tried, in.tried = in.tried, true
	p.called(in, a.tried)
	bounded, cancel := context.WithTimeout(volume.WithMigrated(ctx, in.Migrated), p.cfg.Timeout)
	defer cancel()
	response, err := p.cfg.Driver.CreateVolume(bounded, request)
	p.note(in, StateInDoubt)
	if err != nil {
		state := p.createFailed(in, a, err)
		if state == provisioner.ProvisioningFinished && status.Code(err) == codes.InvalidArgument {
			err = infeasible{err}
		}
		return nil, state, err
	}
	made := response.GetVolume()
	if made.GetVolumeId() == "" {
		return nil, provisioner.ProvisioningInBackground, fmt.Errorf("driver %s answered CreateVolume %s without a volume ID; this is a fault of the driver, and the volume may exist", p.cfg.DriverName, request.Name)
	}
	problem := checkReply(in.Request, made)
	if problem != nil {
		return p.deleteStray(ctx, in, made, a.secrets, problem)
	}
	// A PersistentVolume that cannot be made now can never be.
	pv, problem := p.volumeOf(ctx, in, made)
	if problem != nil {
		return p.deleteStray(ctx, in, made, a.secrets, problem)
	}
	if !in.Migrated && !p.cfg.Mine(pv) {
		// Nobody would ever delete it: it is this driver's alone.
		return p.deleteStray(ctx, in, made, a.secrets, errors.New("the driver made the volume where this node is not"))
	}
	p.note(in, StateMade)
	return pv, provisioner.ProvisioningFinished, nil
}

// createFailed tells what a failed call leaves behind, and forgets the intent
// where that is nothing.
func (p *Provisioner) createFailed(in *intent, a attempt, err error) provisioner.ProvisioningState {
	switch outcome := volume.OutcomeOf(err); {
	case outcome == volume.OutcomeRetry && !a.tried:
		// Not sent. The claim may change before it is tried again.
		p.Settle(in.Claim.UID)
		return provisioner.ProvisioningNoChange
	case outcome == volume.OutcomeRetry:
		return provisioner.ProvisioningNoChange
	case outcome != volume.OutcomeFinal, a.without, a.tried && !provesNothingMade(err):
		return provisioner.ProvisioningInBackground
	}
	p.Settle(in.Claim.UID)
	// Another node helps if the request was for this one. If the scheduler has
	// chosen another meanwhile, that one was not asked about.
	if in.Topology && in.SelectedNode != "" && in.SelectedNode == a.selectedNode && status.Code(err) == codes.ResourceExhausted {
		return provisioner.ProvisioningReschedule
	}
	return provisioner.ProvisioningFinished
}

// provesNothingMade reports whether a refusal speaks also of earlier calls with the
// same request, which may have made the volume: had they, it would have been
// found. Whoever is not let in has not been looked for.
func provesNothingMade(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented, codes.AlreadyExists, codes.NotFound:
		return false
	default:
		return true
	}
}
