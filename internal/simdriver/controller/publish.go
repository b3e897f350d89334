package controller

import (
	"context"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/capability"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// ControllerPublishVolume lets a node use a volume. A volume of a single-node
// mode that is published elsewhere is refused with FAILED_PRECONDITION.
func (s *Server) ControllerPublishVolume(ctx context.Context, request *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	switch {
	case request.GetVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	case request.GetNodeId() == "":
		return nil, status.Error(codes.InvalidArgument, "node_id is missing")
	}
	if err := capability.Check(request.GetVolumeCapability()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	publication, err := s.store.Publish(ctx, state.Publication{
		Volume:   request.GetVolumeId(),
		Node:     request.GetNodeId(),
		Mode:     request.GetVolumeCapability().GetAccessMode().GetMode().String(),
		ReadOnly: request.GetReadonly(),
	})
	if err != nil {
		return nil, failure(err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{
		"generation": strconv.FormatUint(publication.Generation, 10),
	}}, nil
}

// ControllerUnpublishVolume takes a volume from a node, or from all. Its answer
// is the fence: no write of that node is in flight then, and none will follow.
func (s *Server) ControllerUnpublishVolume(ctx context.Context, request *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if err := s.store.Unpublish(ctx, request.GetVolumeId(), request.GetNodeId()); err != nil {
		return nil, failure(err)
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}
