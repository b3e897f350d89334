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
