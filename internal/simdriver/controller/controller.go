// Package controller is the Controller service of the simulated driver.
package controller

import (
	"context"
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// Config of a Server.
type Config struct {
	Store  *state.Store
	Health health.Dialect
	// Topology says that volumes are accessible from segments only.
	Topology bool
	// Capacity says that the driver tells how much room there is.
	Capacity bool
	// At makes it the service of a node's own process, for volumes at these segments
	// alone, as a driver of local disks has it; nil: for all. Topology goes with it.
	At state.Segments
	// Misbehave makes replies wrong; nil: they are right.
	Misbehave *misbehave.Switch
}

// Server answers for all volumes.
type Server struct {
	csi.UnimplementedControllerServer
	store              *state.Store
	health             health.Dialect
	topology, capacity bool
	at                 state.Segments
	misbehave          *misbehave.Switch
}

// New makes it.
func New(cfg Config) (*Server, error) {
	if cfg.Store == nil {
		return nil, errors.New("the controller service needs a store")
	}
	if _, err := health.Parse(string(cfg.Health)); err != nil {
		return nil, err
	}
	if len(cfg.At) > 0 && !cfg.Topology {
		return nil, errors.New("the controller service of one place needs topology")
	}
	if cfg.Misbehave == nil {
		cfg.Misbehave = &misbehave.Switch{}
	}
	return &Server{store: cfg.Store, health: cfg.Health,
		topology: cfg.Topology, capacity: cfg.Capacity, at: cfg.At, misbehave: cfg.Misbehave}, nil
}

// ControllerGetCapabilities tells what there is.
func (s *Server) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	types := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
	}
	if s.capacity {
		types = append(types, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	}
	switch s.health {
	case health.Legacy:
		types = append(types, health.ControllerVolumeCondition)
	case health.V113:
		types = append(types,
			csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH,
			csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range types {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// failure gives an error of the store its code.
func failure(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, state.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, state.ErrConflict):
		code = codes.AlreadyExists
	case errors.Is(err, state.ErrInUse):
		code = codes.FailedPrecondition
	case errors.Is(err, state.ErrInvalid), errors.Is(err, state.ErrInaccessible):
		// CSI has no code for a node that is elsewhere, and FAILED_PRECONDITION
		// would say that the volume is published.
		code = codes.InvalidArgument
	case errors.Is(err, state.ErrRange):
		code = codes.OutOfRange
	case errors.Is(err, state.ErrExhausted):
		code = codes.ResourceExhausted
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}
