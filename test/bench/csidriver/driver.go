// Package csidriver is a CSI driver of nothing, for benches: its volumes are names
// in memory, it answers when it is told to, and it counts the calls for each.
package csidriver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// Config of a Driver.
type Config struct {
	// Name is the driver's.
	Name string
	// Socket is the path of its unix socket.
	Socket string
	// Latency is how long CreateVolume and DeleteVolume take; 0: they answer at
	// once.
	Latency time.Duration
	// Capacity makes it a driver with topology that answers GetCapacity; nil: it has
	// neither.
	Capacity *Capacity
}

// Driver serves until it is stopped.
type Driver struct {
	cfg    Config
	server *grpc.Server
	served chan error

	mu      sync.Mutex
	volumes map[string]int64 // by ID, with the capacity
	creates map[string]int   // calls by the name that they ask for
	deletes map[string]int   // calls by ID
	changed chan struct{}    // closed and replaced when a volume comes or goes

	capacities // of GetCapacity
}

// Start listens and serves until Stop; the context bounds only the start.
func Start(ctx context.Context, cfg Config) (*Driver, error) {
	if cfg.Name == "" || cfg.Socket == "" || cfg.Latency < 0 {
		return nil, errors.New("a driver needs a name, a socket and a latency of 0 or more")
	}
	if err := cfg.Capacity.check(); err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("listening for the driver: %w", err)
	}
	d := &Driver{
		cfg: cfg, server: grpc.NewServer(), served: make(chan error, 1),
		volumes: map[string]int64{}, changed: make(chan struct{}),
	}
	d.Forget()
	d.ForgetCapacity()
	csi.RegisterIdentityServer(d.server, identity{driver: d})
	csi.RegisterControllerServer(d.server, controller{driver: d})
	go func() { d.served <- d.server.Serve(listener) }()
	return d, nil
}

// Stop ends all calls.
func (d *Driver) Stop() error {
	d.server.Stop()
	return <-d.served
}

// VolumeID is the ID of the volume of that name.
func VolumeID(name string) string { return "vol-" + name }

// Forget begins to count the calls anew. The volumes stay.
func (d *Driver) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.creates, d.deletes = map[string]int{}, map[string]int{}
}

// Calls of one kind. A call counts when it arrives, whatever becomes of it.
type Calls struct {
	// Total is of all volumes, those that nobody asked about among them.
	Total int `json:"total"`
	// Least and Most are of one volume, of those that were asked about.
	Least int `json:"leastOfAVolume"`
	Most  int `json:"mostOfAVolume"`
}

// Calls gives those since Forget; names are of the volumes that are asked about.
func (d *Driver) Calls(names []string) (creates, deletes Calls) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return count(d.creates, names, func(name string) string { return name }), count(d.deletes, names, VolumeID)
}

func count(calls map[string]int, names []string, key func(string) string) (c Calls) {
	for _, n := range calls {
		c.Total += n
	}
	for i, name := range names {
		n := calls[key(name)]
		if i == 0 {
			c.Least = n
		}
		c.Least, c.Most = min(c.Least, n), max(c.Most, n)
	}
	return c
}

// AwaitEmpty waits until there is no volume.
func (d *Driver) AwaitEmpty(ctx context.Context) error {
	for {
		d.mu.Lock()
		left, changed := len(d.volumes), d.changed
		d.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the driver to be empty, %d volumes are left: %w", left, context.Cause(ctx))
		}
	}
}

// change does something to the volumes under the lock.
func (d *Driver) change(do func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	do()
	close(d.changed)
	d.changed = make(chan struct{})
}
