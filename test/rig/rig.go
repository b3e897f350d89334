// Package rig builds a small world for tests, demonstrations and benchmarks: a
// real control plane, virtual nodes, a CSI driver on each and replicas of
// ha-sidecar that run as the chart would run them, with the chart's flags,
// ServiceAccount and roles.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/testcluster"
)

const (
	// Driver is the name of the CSI driver.
	Driver = "sim.csi.ha-sidecar.io"
	// SidecarNamespace is where the sidecar's ServiceAccount and leases are.
	SidecarNamespace = "csi-sim"

	stopBound  = 20 * time.Second
	readyBound = 60 * time.Second
)

// Config of a Rig.
type Config struct {
	// Dir holds everything; it is made, and left when Stop has run.
	Dir string
	// Nodes is the number of virtual nodes, node-1 and up.
	Nodes int
	// Replicas of ha-sidecar that Start runs; more with StartSidecar.
	Replicas int
	// Values are set on the chart, as for helm --set: "failover.mode=enforce".
	Values []string
	// Beside are those of a second release of the chart, which StartBeside runs; nil:
	// there is none.
	Beside []string
	// SidecarArgs are added to the flags that the chart renders.
	SidecarArgs []string
	// NodeArgs are added to the flags of the virtual nodes.
	NodeArgs []string
	// ClusterArgs are given to the control plane, as COMPONENT=--flag=value.
	ClusterArgs []string
	// ControllerManagerApart runs kube-controller-manager as a process of its own,
	// which a test may end and start again.
	ControllerManagerApart bool
	// Topology says where the nodes are: segments by name of the node. The driver
	// takes part in topology then; nil: it does not.
	Topology map[string]map[string]string
	// DriverArgs are added to the flags of the driver's controller.
	DriverArgs []string
	// NodeDriverArgs are added to the flags of the driver on each node.
	NodeDriverArgs []string
	// Health is the driver's dialect: none, legacy, or v1.13 when empty.
	Health string
	// AuditLog is a file for every request to the API server; empty: none.
	AuditLog string
	// Log receives progress for people.
	Log io.Writer
}

// Rig is a running world.
type Rig struct {
	cfg     Config
	Cluster *testcluster.Cluster
	Client  kubernetes.Interface
	Dynamic dynamic.Interface
	// Driver controls the driver's controller service.
	Driver *simctl.Client
	// Nodes by order, Nodes[0] is node-1.
	Nodes    []*Node
	Sidecars []*Sidecar
	// Observer watches what happens.
	Observer *Observer

	// chart is the release, beside the second one or nil.
	chart     *chart
	beside    *chart
	processes []*process.Process
	// manager is kube-controller-manager, where it is apart.
	manager *process.Process
}

// Start builds the world. On an error everything that was started is stopped.
func Start(ctx context.Context, cfg Config) (*Rig, error) {
	if cfg.Dir == "" || cfg.Nodes < 0 {
		return nil, errors.New("rig: Config.Dir and a number of nodes are required")
	}
	if cfg.Health == "" {
		cfg.Health = "v1.13"
	}
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	r := &Rig{cfg: cfg}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"the control plane", r.startCluster},
		{"the driver", r.startDriver},
		{"the chart's roles", r.applyCharts},
		{"the nodes", r.startNodes},
		{"ha-sidecar", r.startSidecars},
	} {
		if err := step.do(ctx); err != nil {
			return nil, errors.Join(fmt.Errorf("starting %s: %w", step.what, err), r.Stop())
		}
		_, _ = fmt.Fprintf(cfg.Log, "started %s\n", step.what)
	}
	return r, nil
}

// Stop ends everything, the newest first.
func (r *Rig) Stop() error {
	var errs []error
	for _, s := range r.Sidecars {
		errs = append(errs, s.Stop())
	}
	for _, n := range r.Nodes {
		errs = append(errs, n.stop())
	}
	if r.Driver != nil {
		r.Driver.Close()
	}
	for i := len(r.processes) - 1; i >= 0; i-- {
		errs = append(errs, r.processes[i].Stop(stopBound))
	}
	errs = append(errs, r.StopControllerManager())
	if r.Observer != nil {
		r.Observer.stop()
	}
	if r.Cluster != nil {
		errs = append(errs, r.Cluster.Stop())
	}
	return errors.Join(errs...)
}

func (r *Rig) startCluster(ctx context.Context) (err error) {
	for _, dir := range []string{"logs", "cluster", "driver"} {
		if err := os.MkdirAll(filepath.Join(r.cfg.Dir, dir), 0o755); err != nil {
			return err
		}
	}
	if r.Cluster, err = testcluster.Start(ctx, testcluster.Config{
		Dir: filepath.Join(r.cfg.Dir, "cluster"), Args: r.cfg.ClusterArgs, AuditLog: r.cfg.AuditLog, Without: r.apart(),
	}); err != nil {
		return err
	}
	r.Client = r.Cluster.Client()
	if r.Dynamic, err = dynamic.NewForConfig(r.Cluster.RESTConfig()); err != nil {
		return err
	}
	if r.Observer, err = newObserver(ctx, r.Client); err != nil || !r.cfg.ControllerManagerApart {
		return err
	}
	return r.StartControllerManager(ctx)
}

func (r *Rig) startDriver(ctx context.Context) error {
	args := []string{
		"controller", "--endpoint=unix://" + r.driverSocket(), "--control=unix://" + r.path("driver-control.sock"),
		"--state-dir=" + r.StateDir(), "--name=" + Driver, "--health=" + r.cfg.Health,
	}
	if r.cfg.Topology != nil {
		args = append(args, "--topology")
	}
	p, err := r.start(ctx, "driver-controller", "simdriver", "Serving", append(args, r.cfg.DriverArgs...)...)
	if err != nil {
		return err
	}
	r.processes = append(r.processes, p)
	r.Driver, err = simctl.Dial(r.path("driver-control.sock"))
	return err
}

// StateDir is the driver's state directory, where the volumes are.
func (r *Rig) StateDir() string { return filepath.Join(r.cfg.Dir, "driver") }

func (r *Rig) path(name string) string { return filepath.Join(r.cfg.Dir, name) }

func (r *Rig) driverSocket() string { return r.path("driver.sock") }

// start runs a program of bin/, logs to logs/NAME.log and waits for the text
// that says it is ready.
func (r *Rig) start(ctx context.Context, name, program, readyText string, args ...string) (*process.Process, error) {
	return r.startWithEnv(ctx, name, program, readyText, nil, args...)
}

func (r *Rig) startWithEnv(ctx context.Context, name, program, readyText string, env []string, args ...string) (*process.Process, error) {
	path, err := Program(program)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(r.cfg.Dir, "logs", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p, err := process.Start(process.Config{Path: path, Args: args, Env: env, Log: log, ReadyText: readyText})
	if err != nil {
		return nil, err
	}
	bound, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	select {
	case <-p.Ready():
		return p, nil
	case <-p.Done():
		return nil, p.Err()
	case <-bound.Done():
		return nil, errors.Join(fmt.Errorf("%s was not ready in time: %w: %s", name, context.Cause(bound), p.Tail()), p.Stop(time.Second))
	}
}

// Program is the path of a program in bin/, next to the go.mod above the
// working directory.
func Program(name string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, "bin", name)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is missing: run make build bin/helm bin/writer bin/csi-attacher", path)
	}
	return path, nil
}

// Root is the repository's root.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return "", errors.New("no go.mod above the working directory: run from the repository")
	}
}
