package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
)

// Sidecar is a replica of ha-sidecar.
type Sidecar struct {
	*process.Process
	// Endpoint is host:port of its HTTP server.
	Endpoint string
}

// Stop ends the replica as Kubernetes would.
func (s *Sidecar) Stop() error {
	select {
	case <-s.Done():
		return nil // killed or ended in the test
	default:
		return s.Process.Stop(stopBound)
	}
}

// Pause stops the process without its knowledge; Continue lets it go on.
func (s *Sidecar) Pause() error { return s.Signal(syscall.SIGSTOP) }

// Continue lets a paused process go on.
func (s *Sidecar) Continue() error { return s.Signal(syscall.SIGCONT) }

func (r *Rig) startSidecars(ctx context.Context) error {
	for range r.cfg.Replicas {
		if _, err := r.StartSidecar(ctx); err != nil {
			return err
		}
	}
	return nil
}

// StartSidecar starts one more replica, as the chart's Deployment would: its
// flags, its ServiceAccount's token.
func (r *Rig) StartSidecar(ctx context.Context, extra ...string) (*Sidecar, error) {
	return r.startReplica(ctx, r.chart, "ha-sidecar", "/readyz", nil, slices.Concat(r.chart.sidecar.Args, r.ownArgs(), r.cfg.SidecarArgs, extra))
}

// StartBeside starts a replica of the second release.
func (r *Rig) StartBeside(ctx context.Context, extra ...string) (*Sidecar, error) {
	if r.beside == nil {
		return nil, errors.New("there is no second release: set Config.Beside")
	}
	return r.startReplica(ctx, r.beside, "ha-sidecar", "/readyz", nil, slices.Concat(r.beside.sidecar.Args, r.ownArgs(), r.cfg.SidecarArgs, extra))
}

// StartSidecarOn starts a replica as the chart's DaemonSet would on the node: beside
// the driver there, with the DaemonSet's flags and environment.
func (r *Rig) StartSidecarOn(ctx context.Context, n *Node, extra ...string) (*Sidecar, error) {
	pod, err := r.newNodePod(ctx, n)
	if err != nil {
		return nil, err
	}
	env, err := r.chart.environment(pod, n.Name)
	if err != nil {
		return nil, err
	}
	args := slices.Concat(r.chart.sidecar.Args, []string{"--csi-address=" + n.path("-csi.sock")}, r.cfg.SidecarArgs, extra)
	return r.startReplica(ctx, r.chart, "ha-sidecar", "/readyz", env, args)
}

// StartOther starts another sidecar of bin/ in the place of ha-sidecar: beside
// the same driver, with the same ServiceAccount's token. It is ready when it
// answers the path of its HTTP endpoint.
func (r *Rig) StartOther(ctx context.Context, program, readyPath string, args ...string) (*Sidecar, error) {
	return r.startReplica(ctx, r.chart, program, readyPath, nil, append(r.ownArgs(), args...))
}

// ownArgs are the flags that depend on the rig.
func (r *Rig) ownArgs() []string { return []string{"--csi-address=" + r.driverSocket()} }

// startReplica starts a program as the ServiceAccount of a release; the last of a
// flag counts.
func (r *Rig) startReplica(ctx context.Context, of *chart, program, readyPath string, env, args []string) (*Sidecar, error) {
	kubeconfig, err := r.kubeconfigOf(ctx, of)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	endpoint := fmt.Sprintf("127.0.0.1:%d", port)
	args = append([]string{"--kubeconfig=" + kubeconfig}, append(args, "--http-endpoint="+endpoint)...)
	name := fmt.Sprintf("%s-%d", program, len(r.Sidecars)+1)
	p, err := r.startWithEnv(ctx, name, program, "", append([]string{"POD_NAMESPACE=" + SidecarNamespace}, env...), args...)
	if err != nil {
		return nil, err
	}
	s := &Sidecar{Process: p, Endpoint: endpoint}
	r.Sidecars = append(r.Sidecars, s)
	return s, r.Await(ctx, name+" is ready", func() bool { return s.Get(readyPath) == nil })
}

// Restart stops every replica, one after the other, and starts one with these
// flags added, as a rollout does that recreates the pods.
func (r *Rig) Restart(ctx context.Context, extra ...string) (*Sidecar, error) {
	var errs []error
	for _, s := range r.Sidecars {
		errs = append(errs, s.Stop())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return r.StartSidecar(ctx, extra...)
}

// Get fetches a path of the HTTP endpoint; nil for status 200.
func (s *Sidecar) Get(path string) error {
	_, err := s.Body(path)
	return err
}

// Body fetches a path of the HTTP endpoint.
func (s *Sidecar) Body(path string) (string, error) {
	res, err := http.Get("http://" + s.Endpoint + path) // loopback
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", path, res.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// Leader is the replica that leads, or nil.
func (r *Rig) Leader() *Sidecar {
	for _, s := range r.Sidecars {
		if body, err := s.Body("/debug/leader"); err == nil && strings.HasPrefix(body, "leads") {
			return s
		}
	}
	return nil
}

// LogOf reads a log file of the rig: "ha-sidecar-1", "node-1-agent".
func (r *Rig) LogOf(name string) string {
	b, err := os.ReadFile(r.path("logs/" + name + ".log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // closed at once
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// SidecarKubeconfig writes a kubeconfig of the chart's ServiceAccount.
func (r *Rig) SidecarKubeconfig(ctx context.Context) (string, error) {
	return r.kubeconfigOf(ctx, r.chart)
}

func (r *Rig) kubeconfigOf(ctx context.Context, c *chart) (string, error) {
	return r.Cluster.ServiceAccountKubeconfig(ctx, SidecarNamespace, c.template.Spec.ServiceAccountName)
}
