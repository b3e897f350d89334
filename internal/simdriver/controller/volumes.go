package controller

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/capability"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// CreateVolume makes a directory, or finds the one that this name made before.
func (s *Server) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if request.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	if err := capability.CheckAll(request.GetVolumeCapabilities()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if request.GetVolumeContentSource() != nil {
		return nil, status.Error(codes.InvalidArgument, "volumes are made empty: there are no snapshots or clones")
	}
	size := state.Range{
		Required: request.GetCapacityRange().GetRequiredBytes(),
		Limit:    request.GetCapacityRange().GetLimitBytes(),
	}
	if size.Required < 0 || size.Limit < 0 || (size.Limit > 0 && size.Limit < size.Required) {
		return nil, status.Errorf(codes.OutOfRange, "no capacity is within %d and %d", size.Required, size.Limit)
	}
	volume, err := s.store.CreateVolume(ctx, request.GetName(), size)
	if err != nil {
		return nil, failure(err)
	}
	return &csi.CreateVolumeResponse{Volume: describe(volume)}, nil
}

// DeleteVolume removes the directory, unless it is published.
func (s *Server) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if err := s.store.DeleteVolume(ctx, request.GetVolumeId()); err != nil {
		return nil, failure(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms mounts in the modes that CSI knows.
func (s *Server) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if len(request.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume_capabilities are missing")
	}
	if _, err := s.store.Volume(request.GetVolumeId()); err != nil {
		return nil, failure(err)
	}
	if err := capability.CheckAll(request.GetVolumeCapabilities()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil //nolint:nilerr // unconfirmed is an answer
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext:      request.GetVolumeContext(),
		VolumeCapabilities: request.GetVolumeCapabilities(),
		Parameters:         request.GetParameters(),
		MutableParameters:  request.GetMutableParameters(),
	}}, nil
}

// ListVolumes pages through all volumes.
func (s *Server) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	volumes, err := s.store.Volumes()
	if err != nil {
		return nil, failure(err)
	}
	part, next, err := page(volumes, request.GetMaxEntries(), request.GetStartingToken())
	if err != nil {
		return nil, err
	}
	response := &csi.ListVolumesResponse{NextToken: next}
	for _, volume := range part {
		state := &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: volume.Nodes()}
		if err := s.addCondition(state, volume); err != nil {
			return nil, failure(err)
		}
		response.Entries = append(response.Entries, &csi.ListVolumesResponse_Entry{Volume: describe(volume), Status: state})
	}
	return response, nil
}

// ControllerGetVolume tells of one volume what ListVolumes does.
func (s *Server) ControllerGetVolume(_ context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	volume, err := s.store.Volume(request.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	state := &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: volume.Nodes()}
	if err := s.addCondition(state, volume); err != nil {
		return nil, failure(err)
	}
	return &csi.ControllerGetVolumeResponse{Volume: describe(volume), Status: state}, nil
}

func describe(volume state.Volume) *csi.Volume {
	return &csi.Volume{VolumeId: volume.ID, CapacityBytes: volume.Capacity}
}

// conditions are what is wrong with a volume as the controller sees it in the
// legacy dialect. That one cannot say from which node a volume is inaccessible,
// so a lost path counts wherever the volume is published.
func (s *Server) conditions(volume state.Volume) ([]state.Condition, error) {
	conditions := append([]state.Condition(nil), volume.Conditions[""]...)
	for _, node := range volume.Nodes() {
		failed, err := s.store.PathFailed(volume.ID, node)
		if err != nil {
			return nil, err
		}
		if failed {
			lost := health.PathLost()
			lost.Message = "The path from node " + node + " to the volume is lost"
			conditions = append(conditions, lost)
		}
	}
	return conditions, nil
}
