package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/capability"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// GetCapacity tells how much room is left in a segment, or without one in all of
// them. Parameters make no difference; for what the driver cannot make, there is
// no room.
func (s *Server) GetCapacity(_ context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if !s.capacity {
		return nil, status.Error(codes.Unimplemented, "the driver runs without --capacity")
	}
	at := state.Segments(request.GetAccessibleTopology().GetSegments())
	if len(s.at) > 0 {
		if !s.at.Within(at) {
			return &csi.GetCapacityResponse{}, nil
		}
		at = s.at
	}
	if len(at) > 0 && !s.topology {
		return nil, status.Error(codes.InvalidArgument, "accessible_topology is given, and the driver runs without --topology")
	}
	for _, wanted := range request.GetVolumeCapabilities() {
		if capability.Check(wanted) != nil {
			return &csi.GetCapacityResponse{}, nil //nolint:nilerr // no room is an answer
		}
	}
	room, err := s.store.RoomAt(at)
	if err != nil {
		return nil, failure(err)
	}
	response := &csi.GetCapacityResponse{AvailableCapacity: room.Available}
	if room.MaximumVolumeSize > 0 {
		response.MaximumVolumeSize = wrapperspb.Int64(room.MaximumVolumeSize)
	}
	return response, nil
}
