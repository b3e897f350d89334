// Package csinodetest is a CSI driver's node service for tests: it mounts
// nothing but directories, and tells of every call.
package csinodetest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Call is one call that arrived.
type Call struct {
	Method, Volume string
	// Request is the call's message.
	Request any
}

// Driver is the fake. Set its exported fields before the first call.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer

	Name         string
	NodeID       string
	Topology     map[string]string
	MaxVolumes   int64
	Capabilities []csi.NodeServiceCapability_RPC_Type
	// OnCall, if set, is asked about every call on a volume; its error is the
	// call's answer.
	OnCall func(ctx context.Context, call Call) error

	mu     sync.Mutex
	calls  []Call
	health []*csi.VolumeHealth_VolumeHealthEntry
	fails  map[string]codes.Code
}

// Start serves the driver on a socket below dir until the test ends, and returns
// the endpoint.
func Start(t testing.TB, d *Driver) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "csi.sock")
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); err != nil {
			t.Errorf("serving the fake driver: %v", err)
		}
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return "unix://" + path
}

// Fail makes a method answer with a code; codes.OK ends that.
func (d *Driver) Fail(method string, code codes.Code) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails == nil {
		d.fails = map[string]codes.Code{}
	}
	d.fails[method] = code
}

// SetHealth is the answer of NodeGetVolumeHealth for every volume.
func (d *Driver) SetHealth(entries ...*csi.VolumeHealth_VolumeHealthEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.health = entries
}

// Methods lists the calls on volumes so far, as "Method volume".
func (d *Driver) Methods() []string {
	var out []string
	for _, c := range d.Calls() {
		out = append(out, c.Method+" "+c.Volume)
	}
	return out
}

// Calls lists the calls on volumes so far.
func (d *Driver) Calls() []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

func (d *Driver) called(ctx context.Context, call Call) error {
	d.mu.Lock()
	d.calls = append(d.calls, call)
	code := d.fails[call.Method]
	d.mu.Unlock()
	if code != codes.OK {
		return status.Errorf(code, "%s fails on purpose", call.Method)
	}
	if d.OnCall != nil {
		return d.OnCall(ctx, call)
	}
	return nil
}

// GetPluginInfo tells the name.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.Name, VendorVersion: "test"}, nil
}

// Probe is always ready.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// NodeGetCapabilities tells Capabilities.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.Capabilities {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}

// NodeGetInfo tells NodeID, MaxVolumes and Topology.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	out := &csi.NodeGetInfoResponse{NodeId: d.NodeID, MaxVolumesPerNode: d.MaxVolumes}
	if d.Topology != nil {
		out.AccessibleTopology = &csi.Topology{Segments: d.Topology}
	}
	return out, nil
}

// NodeStageVolume does nothing but be told of.
func (d *Driver) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, d.called(ctx, Call{"Stage", req.GetVolumeId(), req})
}

// NodePublishVolume makes the target a directory.
func (d *Driver) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := d.called(ctx, Call{"Publish", req.GetVolumeId(), req}); err != nil {
		return nil, err
	}
	if err := os.Mkdir(req.GetTargetPath(), 0o755); err != nil && !os.IsExist(err) {
		return nil, fmt.Errorf("publishing: %w", err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume removes the target.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := d.called(ctx, Call{"Unpublish", req.GetVolumeId(), req}); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(req.GetTargetPath())
}

// NodeUnstageVolume does nothing but be told of.
func (d *Driver) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.called(ctx, Call{"Unstage", req.GetVolumeId(), req})
}

// NodeGetVolumeHealth answers what SetHealth said.
func (d *Driver) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if err := d.called(ctx, Call{"Health", req.GetVolumeId(), req}); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: &csi.VolumeHealth{VolumeId: req.GetVolumeId(), HealthStatuses: d.health}}, nil
}
