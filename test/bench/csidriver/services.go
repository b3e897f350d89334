package csidriver

import (
	"context"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type identity struct {
	csi.UnimplementedIdentityServer
	driver *Driver
}

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.driver.cfg.Name, VendorVersion: "bench"}, nil
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (i identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	services := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	if i.driver.cfg.Capacity != nil {
		services = append(services, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	response := &csi.GetPluginCapabilitiesResponse{}
	for _, service := range services {
		response.Capabilities = append(response.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: service}},
		})
	}
	return response, nil
}

type controller struct {
	csi.UnimplementedControllerServer
	driver *Driver
}

// ControllerGetCapabilities tells of publishing too, as most drivers do: the
// sidecars then look at the VolumeAttachments before they delete.
func (c controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	kinds := []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	}
	if c.driver.cfg.Capacity != nil {
		kinds = append(kinds, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	}
	response := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range kinds {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

func (c controller) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	name, size := request.GetName(), request.GetCapacityRange().GetRequiredBytes()
	if name == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	c.driver.change(func() { c.driver.creates[name]++ })
	if err := work(ctx, c.driver.cfg.Latency); err != nil {
		return nil, err
	}
	id := VolumeID(name)
	c.driver.change(func() {
		if had, exists := c.driver.volumes[id]; exists {
			size = had
		}
		c.driver.volumes[id] = size
	})
	if size < request.GetCapacityRange().GetRequiredBytes() {
		return nil, status.Errorf(codes.AlreadyExists, "volume %s has %d bytes", id, size)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, CapacityBytes: size}}, nil
}

func (c controller) DeleteVolume(ctx context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	id := request.GetVolumeId()
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	c.driver.change(func() { c.driver.deletes[id]++ })
	if err := work(ctx, c.driver.cfg.Latency); err != nil {
		return nil, err
	}
	c.driver.change(func() { delete(c.driver.volumes, id) })
	return &csi.DeleteVolumeResponse{}, nil
}

// work takes the time that the driver is told to take. Who gives up before it is
// over has changed nothing.
func work(ctx context.Context, latency time.Duration) error {
	if latency > 0 {
		timer := time.NewTimer(latency)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}
