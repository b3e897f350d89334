package controller

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// ControllerListVolumeHealth pages through the volumes that something is wrong
// with. A lost path is not told here: INACCESSIBLE from the controller means
// from everywhere.
func (s *Server) ControllerListVolumeHealth(_ context.Context, request *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	if s.health != health.V113 {
		return nil, status.Error(codes.Unimplemented, "the driver runs without the health of CSI 1.13")
	}
	volumes, err := s.store.Volumes()
	if err != nil {
		return nil, failure(err)
	}
	volumes = slices.DeleteFunc(volumes, func(v state.Volume) bool { return len(v.Conditions[""]) == 0 })
	part, next, err := page(volumes, request.GetMaxEntries(), request.GetStartingToken())
	if err != nil {
		return nil, err
	}
	response := &csi.ControllerListVolumeHealthResponse{NextToken: next}
	for _, volume := range part {
		response.Entries = append(response.Entries, health.Volume(volume.ID, volume.Conditions[""]))
	}
	return response, nil
}

// ControllerGetVolumeHealth tells of one volume, healthy or not.
func (s *Server) ControllerGetVolumeHealth(_ context.Context, request *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	if s.health != health.V113 {
		return nil, status.Error(codes.Unimplemented, "the driver runs without the health of CSI 1.13")
	}
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	volume, err := s.store.Volume(request.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	return &csi.ControllerGetVolumeHealthResponse{
		VolumeHealth: health.Volume(volume.ID, volume.Conditions[""]),
	}, nil
}

// addCondition adds a VolumeCondition where the driver speaks that dialect.
func (s *Server) addCondition(message proto.Message, volume state.Volume) error {
	if s.health != health.Legacy {
		return nil
	}
	conditions, err := s.conditions(volume)
	if err != nil {
		return err
	}
	health.SetCondition(message, conditions)
	return nil
}
