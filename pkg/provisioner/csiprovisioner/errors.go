package csiprovisioner

import (
	"errors"
	"fmt"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// refused is an error that only a change of the claim, its class or what they
// name can mend: the driver is not called.
type refused struct{ text string }

func refusef(format string, args ...any) error { return refused{fmt.Sprintf(format, args...)} }

// Error implements error.
func (r refused) Error() string { return r.text }

// Infeasible implements provisioner.Infeasible.
func (r refused) Infeasible() bool { return true }

// infeasible is an error of the driver that says that the request will not do.
type infeasible struct{ error }

// Unwrap returns the driver's error.
func (i infeasible) Unwrap() error { return i.error }

// Infeasible implements provisioner.Infeasible.
func (i infeasible) Infeasible() bool { return true }

// plannedState is what an error before the driver was called says of the volume:
// this request has made none.
func plannedState(err error) provisioner.ProvisioningState {
	var no refused
	var source *source.Refused
	switch {
	case errors.Is(err, topology.ErrNodeGone):
		return provisioner.ProvisioningReschedule
	case errors.As(err, &no), errors.As(err, &source):
		return provisioner.ProvisioningFinished
	default:
		return provisioner.ProvisioningNoChange
	}
}
