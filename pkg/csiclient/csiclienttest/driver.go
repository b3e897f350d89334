package csiclienttest

import (
	"context"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Handler answers one call. The reply is a message of the call's type, nil, or
// Raw.
type Handler func(ctx context.Context, req any) (any, error)

// Driver is a fake driver at one socket. Without a Handler it is ready, has a
// name and CONTROLLER_SERVICE, and implements nothing else. It can be stopped
// and started again at the same path.
type Driver struct {
	// Path of the socket.
	Path string

	t testing.TB

	mu       sync.Mutex
	name     string
	caps     []csi.ControllerServiceCapability_RPC_Type
	services []csi.PluginCapability_Service_Type
	handlers map[string]Handler
	requests map[string][]any
	server   *grpc.Server
	served   chan struct{}
}

// Name is what a new Driver is called.
const Name = "fake.csi.example.com"

// New makes a driver that is stopped, at a fresh path.
func New(t testing.TB) *Driver {
	t.Helper()
	d := &Driver{
		Path:     SocketPath(t),
		t:        t,
		name:     Name,
		services: []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE},
		handlers: map[string]Handler{},
		requests: map[string][]any{},
	}
	t.Cleanup(d.Stop)
	return d
}

// Start makes a driver and starts it.
func Start(t testing.TB, caps ...csi.ControllerServiceCapability_RPC_Type) *Driver {
	t.Helper()
	d := New(t)
	d.SetCapabilities(caps...)
	d.Start()
	return d
}

// SocketPath is a path for a socket, short enough for the kernel, whose folder
// goes away with the test.
func SocketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi")
	if err != nil {
		t.Fatalf("Making a folder for the socket: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "csi.sock")
}

// SetName changes the driver's name.
func (d *Driver) SetName(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.name = name
}

// SetCapabilities replaces the capabilities of the controller service.
func (d *Driver) SetCapabilities(caps ...csi.ControllerServiceCapability_RPC_Type) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.caps = caps
}

// SetServices replaces the capabilities of the plugin.
func (d *Driver) SetServices(services ...csi.PluginCapability_Service_Type) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.services = services
}

// Handle scripts a call by its name without the service, such as
// "ControllerPublishVolume". A nil handler brings the usual reply back.
func (d *Driver) Handle(method string, h Handler) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handlers[method] = h
}

// Requests are the requests of a method so far.
func (d *Driver) Requests(method string) []any {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]any(nil), d.requests[method]...)
}

// Start listens at Path, taking it over from whoever has it.
func (d *Driver) Start() {
	d.t.Helper()
	if err := os.RemoveAll(d.Path); err != nil {
		d.t.Fatalf("Removing the old socket: %v", err)
	}
	listener, err := net.Listen("unix", d.Path)
	if err != nil {
		d.t.Fatalf("Listening on %s: %v", d.Path, err)
	}
	// The file is removed by Stop alone, which knows whether it is still ours.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	server := grpc.NewServer(grpc.ForceServerCodecV2(newCodec()), grpc.UnaryInterceptor(d.intercept))
	csi.RegisterIdentityServer(server, identity{d: d})
	csi.RegisterControllerServer(server, controller{d: d})
	csi.RegisterNodeServer(server, csi.UnimplementedNodeServer{})
	served := make(chan struct{})
	d.mu.Lock()
	d.server, d.served = server, served
	d.mu.Unlock()
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Stop, and only then.
	}()
}

// Stop cuts every connection and removes the socket.
func (d *Driver) Stop() { d.end(func(s *grpc.Server) { s.Stop() }) }

// Shutdown is Stop in good order: calls in flight are answered first.
func (d *Driver) Shutdown() { d.end(func(s *grpc.Server) { s.GracefulStop() }) }

func (d *Driver) end(stop func(*grpc.Server)) {
	d.mu.Lock()
	server, served := d.server, d.served
	d.server = nil
	d.mu.Unlock()
	if server == nil {
		return
	}
	_ = os.Remove(d.Path)
	stop(server)
	<-served
}

func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	d.mu.Lock()
	d.requests[method] = append(d.requests[method], req)
	handler := d.handlers[method]
	d.mu.Unlock()
	if handler != nil {
		return handler(ctx, req)
	}
	return next(ctx, req)
}

type identity struct {
	csi.UnimplementedIdentityServer

	d *Driver
}

func (identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	return &csi.GetPluginInfoResponse{Name: i.d.name, VendorVersion: "test"}, nil
}

func (i identity) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	i.d.mu.Lock()
	defer i.d.mu.Unlock()
	resp := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range i.d.services {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: t},
		}})
	}
	return resp, nil
}

type controller struct {
	csi.UnimplementedControllerServer

	d *Driver
}

func (c controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range c.d.caps {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: t},
		}})
	}
	return resp, nil
}
