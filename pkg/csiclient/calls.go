package csiclient

import (
	"context"

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
