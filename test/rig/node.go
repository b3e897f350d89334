package rig

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// Node is a virtual node with the driver's node service.
type Node struct {
	Name string
	// Driver controls the driver's node service.
	Driver *simctl.Client
	// Agent switches the agent's faults.
	Agent *nodectl.Client

	rig    *Rig
	agent  *process.Process
	driver *process.Process
}

func (r *Rig) startNodes(ctx context.Context) error {
	r.Nodes = make([]*Node, r.cfg.Nodes)
	errs := make([]error, r.cfg.Nodes)
	var wg sync.WaitGroup
	for i := range r.cfg.Nodes {
		r.Nodes[i] = &Node{Name: fmt.Sprintf("node-%d", i+1), rig: r}
		wg.Go(func() { errs[i] = r.Nodes[i].start(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, n := range r.Nodes {
		if err := r.AwaitNodeReady(ctx, n.Name); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) path(suffix string) string { return n.rig.path(n.Name + suffix) }

func (n *Node) start(ctx context.Context) (err error) {
	r := n.rig
	args := []string{
		"node", "--endpoint=unix://" + n.path("-csi.sock"), "--control=unix://" + n.path("-driver.sock"),
		"--state-dir=" + r.StateDir(), "--node-id=" + n.Name, "--name=" + Driver, "--health=" + r.cfg.Health,
	}
	if at := r.cfg.Topology[n.Name]; len(at) > 0 {
		args = append(args, "--topology="+state.Segments(at).String())
	}
	if n.driver, err = r.start(ctx, n.Name+"-driver", "simdriver", "Serving", append(args, r.cfg.NodeDriverArgs...)...); err != nil {
		return err
	}
	if n.Driver, err = simctl.Dial(n.path("-driver.sock")); err != nil {
		return err
	}
	return n.StartAgent(ctx)
}

// StartAgent starts the node's agent, the first time or after it was killed.
func (n *Node) StartAgent(ctx context.Context) error {
	kubeconfig, err := n.rig.Cluster.NodeKubeconfig(ctx, n.Name)
	if err != nil {
		return err
	}
	args := append([]string{
		"--name=" + n.Name, "--kubeconfig=" + kubeconfig, "--root-dir=" + filepath.Join(n.rig.cfg.Dir, n.Name),
		"--csi-node-socket=unix://" + n.path("-csi.sock"), "--control=" + n.path("-agent.sock"),
	}, n.rig.cfg.NodeArgs...)
	if n.agent, err = n.rig.start(ctx, n.Name+"-agent", "virtualnode", "", args...); err != nil {
		return err
	}
	n.Agent = nodectl.New(n.path("-agent.sock"))
	return nil
}

// KillAgent ends the agent at once; its containers live on.
func (n *Node) KillAgent() { n.agent.Kill() }

// Freeze stops the agent as a hung kernel would; Thaw lets it go on.
func (n *Node) Freeze() error { return n.agent.Signal(syscall.SIGSTOP) }

// Thaw continues a frozen agent.
func (n *Node) Thaw() error { return n.agent.Signal(syscall.SIGCONT) }

// ContainerLogs is the pattern of the node's container logs.
func (n *Node) ContainerLogs(podUID string) string {
	return filepath.Join(n.rig.cfg.Dir, n.Name, "pods", podUID, "containers", "*", "log")
}

func (n *Node) stop() error {
	var errs []error
	for _, p := range []*process.Process{n.agent, n.driver} {
		if p != nil {
			errs = append(errs, p.Stop(stopBound))
		}
	}
	if n.Driver != nil {
		n.Driver.Close()
	}
	return errors.Join(errs...)
}
