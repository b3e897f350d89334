package controller

import (
	"context"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/capability"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// DeleteVolume removes the directory, unless it is published.
func (s *Server) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if there, err := s.isElsewhere(request.GetVolumeId()); err != nil {
		return nil, failure(err)
	} else if there {
		return &csi.DeleteVolumeResponse{}, nil
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
	described := &csi.Volume{
		VolumeId: volume.ID, CapacityBytes: volume.Capacity,
		VolumeContext: contextOf(volume.Parameters), ContentSource: sourceOf(volume.Source),
	}
	if len(volume.Topology) > 0 {
		described.AccessibleTopology = []*csi.Topology{{Segments: volume.Topology}}
	}
	return described
}

// contextPrefix marks the parameters that become the volume's context.
const contextPrefix = "context/"

// contextOf gives the parameters that are called context/KEY as KEY; a driver
// tells its nodes in this way.
func contextOf(parameters map[string]string) map[string]string {
	var told map[string]string
	for key, value := range parameters {
		if name, found := strings.CutPrefix(key, contextPrefix); found && name != "" {
			if told == nil {
				told = map[string]string{}
			}
			told[name] = value
		}
	}
	return told
}

func sourceOf(source state.Source) *csi.VolumeContentSource {
	switch {
	case source.Volume != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source.Volume}}}
	case source.Snapshot != "":
		return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: source.Snapshot}}}
	}
	return nil
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
