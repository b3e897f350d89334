// Package identity is the Identity service of the simulated driver.
package identity

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Version is what the driver calls its own version.
const Version = "1.0.0"

// Server tells who the driver is.
type Server struct {
	csi.UnimplementedIdentityServer
	name     string
	topology bool
}

// New makes it for a driver of that name, whose volumes may be accessible from
// some segments only.
func New(name string, topology bool) *Server { return &Server{name: name, topology: topology} }

// GetPluginInfo tells the name.
func (s *Server) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: s.name, VendorVersion: Version}, nil
}

// GetPluginCapabilities tells that there is a controller service, in a node's
// process too: it speaks for the driver.
func (s *Server) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	types := []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE}
	if s.topology {
		types = append(types, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	response := &csi.GetPluginCapabilitiesResponse{}
	for _, kind := range types {
		response.Capabilities = append(response.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: kind}},
		})
	}
	return response, nil
}

// Probe tells that the driver is ready; before that nobody listens.
func (s *Server) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}
