// Package simdriver is a CSI driver on directories whose fence really fences: a
// demonstration and the tests stand on it. A controller process and one process
// for each node share a state directory on one machine. What a node publishes is
// a FUSE filesystem, so that after ControllerUnpublishVolume, or when a path is
// made to fail, every read and write of that node fails with EIO, through files
// that are open too.
package simdriver

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/calls"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/control"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/controller"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fault"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fusefs"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/identity"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/node"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/server"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// DefaultName is what the driver is called unless told otherwise.
const DefaultName = "sim.csi.ha-sidecar.io"

// unmountWithin is how long the end of a node process waits for filesystems
// that somebody still uses.
const unmountWithin = 2 * time.Second

// driverName is what the CSI specification allows.
var driverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$`)

// Config of one process.
type Config struct {
	// Endpoint is the CSI socket, as unix:///path; Control is the one for people
	// and tests, "" for none.
	Endpoint, Control string
	StateDir          string
	// Name of the driver; "" is DefaultName.
	Name string
	// NodeID makes it the process of that node, "" the controller's.
	NodeID string
	// Health is the dialect; "" is V113.
	Health health.Dialect
	// Topology makes the controller place volumes in segments. NodeTopology are
	// those of a node.
	Topology     bool
	NodeTopology state.Segments
	// LocalController makes a node's process serve the controller service too, for
	// volumes at NodeTopology alone.
	LocalController bool
	// Capacity in bytes of each segment, and of the largest volume, for the
	// controller, or for the node with LocalController; 0 is no limit. Without Capacity it does not tell how much room
	// there is.
	Capacity, MaximumVolumeSize int64
	// Clock is for delays and the ledger; nil is the real one.
	Clock clock.WithTicker
	// Mount mounts a filesystem; nil is fusefs.New.
	Mount func(fusefs.Config) (*fusefs.Mount, error)
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = DefaultName
	}
	if c.Health == "" {
		c.Health = health.V113
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return c
}

// Driver is one process of the driver.
type Driver struct {
	cfg    Config
	store  *state.Store
	faults *fault.Registry
	calls  *calls.Recorder
	wrong  misbehave.Switch
	node   *node.Server // nil in a controller's process
	server *server.Server
}

// New checks the configuration and opens the state directory.
func New(cfg Config) (*Driver, error) {
	cfg = cfg.withDefaults()
	if !driverName.MatchString(cfg.Name) {
		return nil, fmt.Errorf("driver name %q is not allowed: letters, digits, dashes and dots, at most 63", cfg.Name)
	}
	if cfg.LocalController && (cfg.NodeID == "" || len(cfg.NodeTopology) == 0) {
		return nil, errors.New("a controller service beside the node's is for where the node is: its topology is missing")
	}
	store, err := state.New(state.Config{Dir: cfg.StateDir, Clock: cfg.Clock})
	if err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, store: store, calls: calls.NewRecorder(cfg.Clock)}
	register, methods, err := d.services()
	if err != nil {
		return nil, err
	}
	d.faults = fault.NewRegistry(methods, cfg.NodeID, cfg.Clock)
	handler, err := control.New(control.Config{Store: store, Faults: d.faults, Calls: d.calls, Misbehave: &d.wrong,
		Dropper: dropper{d}, Info: d.info})
	if err != nil {
		return nil, err
	}
	d.server, err = server.New(server.Config{
		Endpoint: cfg.Endpoint, Control: cfg.Control,
		Register: register, Interceptors: []grpc.UnaryServerInterceptor{d.calls.Intercept, d.faults.Intercept},
		Handler: handler, Clock: cfg.Clock,
	})
	return d, err
}

// services are those of the role, with the names of their calls.
func (d *Driver) services() (func(*grpc.Server), []string, error) {
	id := identity.New(d.cfg.Name, d.cfg.Topology || len(d.cfg.NodeTopology) > 0)
	described := []grpc.ServiceDesc{csi.Identity_ServiceDesc}
	register := []func(*grpc.Server){func(s *grpc.Server) { csi.RegisterIdentityServer(s, id) }}
	if d.cfg.NodeID == "" || d.cfg.LocalController {
		service, err := controller.New(controller.Config{Store: d.store, Health: d.cfg.Health, At: d.cfg.NodeTopology,
			Topology: d.cfg.Topology || d.cfg.LocalController, Capacity: d.cfg.Capacity > 0, Misbehave: &d.wrong})
		if err != nil {
			return nil, nil, err
		}
		described = append(described, csi.Controller_ServiceDesc)
		register = append(register, func(s *grpc.Server) { csi.RegisterControllerServer(s, service) })
	}
	if d.cfg.NodeID != "" {
		service, err := node.New(node.Config{Store: d.store, NodeID: d.cfg.NodeID, Health: d.cfg.Health,
			Topology: d.cfg.NodeTopology, Mount: d.cfg.Mount})
		if err != nil {
			return nil, nil, err
		}
		d.node = service
		described = append(described, csi.Node_ServiceDesc)
		register = append(register, func(s *grpc.Server) { csi.RegisterNodeServer(s, service) })
	}
	var methods []string
	for _, service := range described {
		for _, method := range service.Methods {
			methods = append(methods, method.MethodName)
		}
	}
	return func(s *grpc.Server) {
		for _, f := range register {
			f(s)
		}
	}, methods, nil
}

// dropper comes before the server that it drops the socket of.
type dropper struct{ driver *Driver }

func (d dropper) Drop(ctx context.Context, duration time.Duration) error {
	return d.driver.server.Drop(ctx, duration)
}

func (d *Driver) info() control.Info {
	info := control.Info{Name: d.cfg.Name, Role: "controller", Fencing: true,
		Health: string(d.cfg.Health), StateDir: d.store.Dir()}
	if d.node != nil {
		info.Role, info.Node, info.Fencing = "node", d.cfg.NodeID, d.node.Fencing()
	}
	return info
}

// limit makes the controller's limit of capacity stand, in the place of an
// earlier one. Those of single segments stay; that of a node is one.
func (d *Driver) limit(ctx context.Context) error {
	limit := state.Limit{Segments: d.cfg.NodeTopology}
	if d.cfg.Capacity > 0 {
		limit.Bytes = &d.cfg.Capacity
	}
	if d.cfg.MaximumVolumeSize > 0 {
		limit.MaximumVolumeSize = &d.cfg.MaximumVolumeSize
	}
	if limit.Bytes == nil && limit.MaximumVolumeSize == nil {
		return nil
	}
	return d.store.SetLimit(ctx, limit)
}

// Ready is closed when the sockets are there.
func (d *Driver) Ready() <-chan struct{} { return d.server.Ready() }

// Run serves until ctx ends. A node unmounts then what it has mounted.
func (d *Driver) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("driver", d.cfg.Name, "node", d.cfg.NodeID))
	if d.node != nil {
		if err := d.node.Start(ctx); err != nil {
			return err
		}
	}
	if err := d.limit(ctx); err != nil {
		return err
	}
	stopFaults := context.AfterFunc(ctx, d.faults.Close)
	err := d.server.Run(ctx)
	stopFaults()
	if d.node != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), unmountWithin)
		defer cancel()
		err = errors.Join(err, d.node.Close(ending))
	}
	return err
}
