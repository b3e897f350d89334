package simdriver

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

// rig is a driver with a controller, and nodes as a test starts them.
type rig struct {
	t   testing.TB
	dir string // the state directory is below it
	run string // the sockets; paths of sockets have to be short
	csi.ControllerClient
	ctl  *simctl.Client
	conn *grpc.ClientConn // the controller's
}

// process is one process of the driver, in this one.
type process struct {
	driver   *Driver
	endpoint string
	conn     *grpc.ClientConn
	ctl      *simctl.Client
	stop     func()
	kill     func() // a node's only
}

// nodeRig is a node's process.
type nodeRig struct {
	*process
	csi.NodeClient
	id string
}

func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	run, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: t.TempDir(), run: run}
	t.Cleanup(func() {
		checkUnmounted(t, r.dir)
		if err := os.RemoveAll(run); err != nil {
			t.Error(err)
		}
	})
	p := r.start("c", change...)
	r.ControllerClient, r.ctl, r.conn = csi.NewControllerClient(p.conn), p.ctl, p.conn
	return r
}

// checkUnmounted: everything that was mounted below dir is unmounted.
func checkUnmounted(t testing.TB, dir string) {
	t.Helper()
	all, err := mounts.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range all {
		if strings.HasPrefix(info.Path, dir) {
			t.Errorf("%s is still mounted", info.Path)
		}
	}
}

// start runs one process until the test ends or stop is called.
func (r *rig) start(socket string, change ...func(*Config)) *process {
	r.t.Helper()
	cfg := Config{
		Endpoint: "unix://" + filepath.Join(r.run, socket),
		Control:  "unix://" + filepath.Join(r.run, socket+".ctl"),
		StateDir: filepath.Join(r.dir, "state"),
	}
	for _, c := range change {
		c(&cfg)
	}
	driver, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	// Not the test's context: that one ends before the cleanups.
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- driver.Run(ctx) }()
	p := &process{driver: driver, endpoint: cfg.Endpoint}
	select {
	case <-driver.Ready():
	case err := <-ended:
		cancel()
		r.t.Fatal("starting the driver:", err)
	}
	p.conn, err = grpc.NewClient(cfg.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	if p.ctl, err = simctl.Dial(cfg.Control); err != nil {
		r.t.Fatal(err)
	}
	p.stop = sync.OnceFunc(func() {
		p.ctl.Close()
		if err := p.conn.Close(); err != nil {
			r.t.Error(err)
		}
		cancel()
		if err := <-ended; err != nil {
			r.t.Error("running the driver:", err)
		}
	})
	r.t.Cleanup(p.stop)
	return p
}

// nodeHere starts a node in this process. Only for tests that mount no FUSE.
func (r *rig) nodeHere(id string, change ...func(*Config)) *nodeRig {
	r.t.Helper()
	p := r.start(id, append(change, func(cfg *Config) { cfg.NodeID = id })...)
	return &nodeRig{process: p, NodeClient: csi.NewNodeClient(p.conn), id: id}
}

// node starts a node as a process of its own, until the test ends or stop is
// called.
func (r *rig) node(id string, flags ...string) *nodeRig {
	r.t.Helper()
	p := &process{endpoint: "unix://" + filepath.Join(r.run, id)}
	control := p.endpoint + ".ctl"
	cmd := command(r.t, append([]string{"node", "--endpoint", p.endpoint, "--control", control,
		"--state-dir", filepath.Join(r.dir, "state"), "--node-id", id}, flags...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	r.must(cmd.Start())
	var err error
	p.conn, err = grpc.NewClient(p.endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The process needs a moment; the default would wait for a second then.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 10 * time.Millisecond, Multiplier: 1, MaxDelay: 10 * time.Millisecond}}))
	r.must(err)
	p.ctl, err = simctl.Dial(control)
	r.must(err)
	end := func(signal syscall.Signal) error {
		p.ctl.Close()
		return errors.Join(p.conn.Close(), cmd.Process.Signal(signal), cmd.Wait())
	}
	stop := sync.OnceFunc(func() {
		if err := end(syscall.SIGTERM); err != nil {
			r.t.Errorf("node %s ended with %v:\n%s", id, err, stderr.String())
		} else if r.t.Failed() {
			r.t.Logf("node %s:\n%s", id, stderr.String())
		}
	})
	p.stop = stop
	p.kill = func() {
		var exit *exec.ExitError
		if err := end(syscall.SIGKILL); !errors.As(err, &exit) {
			r.t.Errorf("killing node %s: %v", id, err)
		}
		p.stop = func() {}
	}
	r.t.Cleanup(func() { p.stop() })
	n := &nodeRig{process: p, NodeClient: csi.NewNodeClient(p.conn), id: id}
	_, err = n.NodeGetInfo(r.t.Context(), &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	r.must(err)
	return n
}

func mountOf(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func oneNode() *csi.VolumeCapability {
	return mountOf(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
}

// volume makes a volume.
func (r *rig) volume(name string) string {
	r.t.Helper()
	response, err := r.CreateVolume(r.t.Context(), &csi.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csi.VolumeCapability{oneNode()},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return response.GetVolume().GetVolumeId()
}

// data is where the content of a volume is.
func (r *rig) data(volume string) string {
	return filepath.Join(r.dir, "state", "volumes", volume, "data")
}

func (r *rig) publish(volume, node string) error {
	_, err := r.ControllerPublishVolume(r.t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: volume, NodeId: node, VolumeCapability: oneNode(),
	})
	return err
}

func (r *rig) unpublish(volume, node string) error {
	_, err := r.ControllerUnpublishVolume(r.t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: node})
	return err
}

func (r *rig) staging(volume, node string) string {
	return filepath.Join(r.dir, node, "staging", volume)
}
func (r *rig) target(volume, node string) string { return filepath.Join(r.dir, node, "pod", volume) }

func (r *rig) stage(n *nodeRig, volume string) error {
	_, err := n.NodeStageVolume(r.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: volume, StagingTargetPath: r.staging(volume, n.id), VolumeCapability: oneNode(),
	})
	return err
}

func (r *rig) nodePublish(n *nodeRig, volume string) error {
	_, err := n.NodePublishVolume(r.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: volume, StagingTargetPath: r.staging(volume, n.id), TargetPath: r.target(volume, n.id), VolumeCapability: oneNode(),
	})
	return err
}

func (r *rig) nodeUnpublish(n *nodeRig, volume string) error {
	_, err := n.NodeUnpublishVolume(r.t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: volume, TargetPath: r.target(volume, n.id)})
	return err
}

func (r *rig) unstage(n *nodeRig, volume string) error {
	_, err := n.NodeUnstageVolume(r.t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: volume, StagingTargetPath: r.staging(volume, n.id)})
	return err
}

// use makes the volume usable on the node and gives its path there.
func (r *rig) use(n *nodeRig, volume string) string {
	r.t.Helper()
	r.must(r.publish(volume, n.id))
	r.must(r.stage(n, volume))
	r.must(r.nodePublish(n, volume))
	return r.target(volume, n.id)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}
