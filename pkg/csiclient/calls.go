package csiclient

import (
	"context"
	"maps"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
)

// ControllerPublish calls ControllerPublishVolume. Errors are *CallError; only
// one with OutcomeFinal or OutcomeRetry leaves the volume unpublished.
func (c *Client) ControllerPublish(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	s, err := c.acquire("ControllerPublishVolume")
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.controller.ControllerPublishVolume(ctx, req)
}

// ControllerUnpublish calls ControllerUnpublishVolume. Errors are *CallError;
// none of them proves that the volume is unpublished.
func (c *Client) ControllerUnpublish(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	s, err := c.acquire("ControllerUnpublishVolume")
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.controller.ControllerUnpublishVolume(ctx, req)
}

// CreateVolume calls CreateVolume. Errors are *CallError; only one with
// OutcomeFinal or OutcomeRetry proves that this call made no volume.
func (c *Client) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	s, err := c.acquire("CreateVolume")
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.controller.CreateVolume(ctx, req)
}

// DeleteVolume calls DeleteVolume. Errors are *CallError; none of them proves that
// the volume is gone.
func (c *Client) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	s, err := c.acquire("DeleteVolume")
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.controller.DeleteVolume(ctx, req)
}

// GetCapacity calls GetCapacity, which changes nothing. Errors are *CallError.
func (c *Client) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	s, err := c.acquire("GetCapacity")
	if err != nil {
		return nil, err
	}
	defer s.release()
	return s.controller.GetCapacity(ctx, req)
}

// NodeInfo is who and where a node is, as its own driver says.
type NodeInfo struct {
	// ID is the driver's name of the node, not that of the Node object.
	ID string
	// Segments are the labels of where it is; empty: the driver does not say.
	Segments map[string]string
}

// NodeInfo calls NodeGetInfo, which changes nothing. Only the socket of a node's
// driver has it: the code of another is UNIMPLEMENTED. Errors are *CallError.
func (c *Client) NodeInfo(ctx context.Context) (NodeInfo, error) {
	s, err := c.acquire("NodeGetInfo")
	if err != nil {
		return NodeInfo{}, err
	}
	defer s.release()
	reply, err := s.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return NodeInfo{}, err
	}
	return NodeInfo{ID: reply.GetNodeId(), Segments: maps.Clone(reply.GetAccessibleTopology().GetSegments())}, nil
}
