// Package csinode is a node agent's side of a CSI driver's node service: typed
// calls with deadlines, and what the driver told about itself.
package csinode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// reconnectMax bounds the wait between two attempts to reach a driver that went
// away; it is a local socket, and cheap to try.
const reconnectMax = time.Second

// Config configures a Client.
type Config struct {
	// Endpoint is the driver's socket, unix:///path.
	Endpoint string
	// Timeout is the deadline of every call.
	Timeout time.Duration
}

// Client calls the node service of one driver.
type Client struct {
	cfg      Config
	conn     *grpc.ClientConn
	identity csi.IdentityClient
	node     csi.NodeClient
}

// Info is what a driver tells about itself and about this node.
type Info struct {
	Name     string
	NodeID   string
	Topology map[string]string
	// MaxVolumes is 0 where the driver sets no limit.
	MaxVolumes   int64
	Capabilities map[csi.NodeServiceCapability_RPC_Type]bool
}

// Has reports whether the driver's node service has a capability.
func (i Info) Has(c csi.NodeServiceCapability_RPC_Type) bool { return i.Capabilities[c] }

// New returns a Client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	if !strings.HasPrefix(cfg.Endpoint, "unix:") {
		return nil, fmt.Errorf("CSI endpoint %q is not a unix socket (unix:///path)", cfg.Endpoint)
	}
	if cfg.Timeout <= 0 {
		return nil, errors.New("the deadline of CSI calls must be positive")
	}
	conn, err := grpc.NewClient(cfg.Endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: reconnectMax},
			MinConnectTimeout: reconnectMax,
		}))
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to %s: %w", cfg.Endpoint, err)
	}
	return &Client{cfg: cfg, conn: conn, identity: csi.NewIdentityClient(conn), node: csi.NewNodeClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Endpoint returns the driver's socket.
func (c *Client) Endpoint() string { return c.cfg.Endpoint }

// Describe asks the driver for its name, its capabilities and its view of the
// node.
func (c *Client) Describe(ctx context.Context) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	plugin, err := c.identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil {
		return Info{}, fmt.Errorf("GetPluginInfo: %w", err)
	}
	probe, err := c.identity.Probe(ctx, &csi.ProbeRequest{})
	if err != nil {
		return Info{}, fmt.Errorf("probing driver %s: %w", plugin.GetName(), err)
	}
	if ready := probe.GetReady(); ready != nil && !ready.GetValue() {
		return Info{}, fmt.Errorf("driver %s is not ready", plugin.GetName())
	}
	caps, err := c.node.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		return Info{}, fmt.Errorf("NodeGetCapabilities: %w", err)
	}
	info, err := c.node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		return Info{}, fmt.Errorf("NodeGetInfo: %w", err)
	}
	if plugin.GetName() == "" || info.GetNodeId() == "" {
		return Info{}, errors.New("the driver names neither itself nor the node")
	}
	out := Info{
		Name: plugin.GetName(), NodeID: info.GetNodeId(), MaxVolumes: info.GetMaxVolumesPerNode(),
		Topology:     info.GetAccessibleTopology().GetSegments(),
		Capabilities: map[csi.NodeServiceCapability_RPC_Type]bool{},
	}
	for _, capability := range caps.GetCapabilities() {
		out.Capabilities[capability.GetRpc().GetType()] = true
	}
	return out, nil
}

// call runs one RPC with the deadline, and names it in the error.
func call[Req, Resp any](ctx context.Context, c *Client, name string, rpc func(context.Context, Req, ...grpc.CallOption) (Resp, error), req Req) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	resp, err := rpc(ctx, req)
	if err != nil {
		return resp, fmt.Errorf("%s: %w", name, err)
	}
	return resp, nil
}

// Stage calls NodeStageVolume.
func (c *Client) Stage(ctx context.Context, req *csi.NodeStageVolumeRequest) error {
	_, err := call(ctx, c, "NodeStageVolume", c.node.NodeStageVolume, req)
	return err
}

// Publish calls NodePublishVolume.
func (c *Client) Publish(ctx context.Context, req *csi.NodePublishVolumeRequest) error {
	_, err := call(ctx, c, "NodePublishVolume", c.node.NodePublishVolume, req)
	return err
}

// Unpublish calls NodeUnpublishVolume.
func (c *Client) Unpublish(ctx context.Context, handle, target string) error {
	_, err := call(ctx, c, "NodeUnpublishVolume", c.node.NodeUnpublishVolume,
		&csi.NodeUnpublishVolumeRequest{VolumeId: handle, TargetPath: target})
	return err
}

// Unstage calls NodeUnstageVolume.
func (c *Client) Unstage(ctx context.Context, handle, staging string) error {
	_, err := call(ctx, c, "NodeUnstageVolume", c.node.NodeUnstageVolume,
		&csi.NodeUnstageVolumeRequest{VolumeId: handle, StagingTargetPath: staging})
	return err
}
