// Package e2e tests failover off failing volumes on a real control plane. Its
// tests bear the name of the public bug report that each is about, of this
// project's peers and of Kubernetes, and state the right behaviour.
//
// Most share one world. Those that need a node, a replica or a cluster-wide
// object for themselves run first, one by one; the others run side by side
// after them, each with volumes and a node of its own.
//
// Reports about failing nodes are not covered here, since a failing node is
// another cause of the same walk: a deleted Node object (longhorn#2848,
// longhorn#3149), a kubelet that is stopped while its node lives
// (kubernetes#120328), the NotReady half of piraeus-ha-controller's PR 16, and
// the node half of external-attacher#215.
package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// startBound is how long a world may take to start.
const startBound = 2 * time.Minute

// leaseDuration of the shared world.
const leaseDuration = 8 * time.Second

func TestMain(m *testing.M) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	common.ctx = ctx
	code := m.Run()
	if err := common.close(code == 0); err != nil {
		fmt.Fprintf(os.Stderr, "--- FAIL: the shared world, after all tests: %v\n", err)
		code = 1
	}
	stop()
	// A failed test may have left anything behind.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintf(os.Stderr, "--- FAIL: the rig, after all tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// common is the world that most tests share. Only TestMain and shared touch it.
var common shared

// shared starts its world for the first test that asks.
type shared struct {
	ctx   context.Context
	once  sync.Once
	world *world
	err   error
}

func (s *shared) close(passed bool) error {
	if s.world == nil {
		return nil
	}
	return s.world.close(passed)
}

// sharedWorld is quick in all it waits for, trusts a healed node soon, and lets
// any number of nodes fail, so that one test does not hold up the next.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	common.once.Do(func() {
		common.world, common.err = startWorld(common.ctx, rig.Config{
			Nodes: 4, Replicas: 2,
			Values: append([]string{
				"failover.mode=enforce", "failover.fence=unpublish", "failover.maxFailingNodes=100%",
				"leaderElection.leaseDuration=" + leaseDuration.String(), "leaderElection.renewDeadline=6s", "leaderElection.retryPeriod=1s",
			}, quickValues...),
			SidecarArgs: append([]string{
				"--workload-free-moves=2", "--workload-backoff-initial=1h", "--workload-backoff-max=1h",
			}, quickArgs...),
		})
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.world
}

var (
	quickValues = []string{"failover.evictDeadline=4s", "failover.evictGraceMax=2s", "failover.holdOff=1s", "health.confirmAfter=1s", "health.interval=2s"}
	quickArgs   = []string{"--suspect-for=3s", "--attacher-timeout=5s"}
)

// world is a rig with what tests keep about it.
type world struct {
	*rig.Rig
	dir string
	// free are the nodes that no test running side by side has failures on.
	free chan string
	// turns bounds how many tests have failures at once, however many run: what
	// moves needs nodes to go to.
	turns chan struct{}
	other *process.Process
}

// ownWorld starts a world for one test.
func ownWorld(t *testing.T, cfg rig.Config) *world {
	t.Helper()
	w, err := startWorld(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(!t.Failed()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func startWorld(ctx context.Context, cfg rig.Config) (*world, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("a world takes more than %v to start", startBound))
	defer cancel()
	// Unix sockets have short names: the world lives in a short directory.
	dir, err := os.MkdirTemp("", "ha-e2e-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, free: make(chan string, cfg.Nodes), turns: make(chan struct{}, max(1, cfg.Nodes/2))}
	cfg.Dir, cfg.AuditLog = dir, filepath.Join(dir, "audit.log")
	cfg.NodeArgs = append(cfg.NodeArgs, "--volume-health-interval=500ms", "--lease-renew-interval=1s", "--csi-node-socket=unix://"+w.otherSocket())
	cfg.ClusterArgs = append(cfg.ClusterArgs, "kube-controller-manager=--attach-detach-reconcile-sync-period=2s")
	if w.other, err = startOther(w, cfg.Dir); err != nil {
		return nil, err
	}
	if w.Rig, err = rig.Start(ctx, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("%w; the logs are in %s", err, filepath.Join(dir, "logs")), w.other.Stop(time.Second))
	}
	for _, node := range w.Nodes {
		w.free <- node.Name
	}
	return w, nil
}

// close checks what must hold whatever was tested, ends the world and, when all
// is well, removes what it leaves.
func (w *world) close(passed bool) error {
	// Not the test's context: it ends before its cleanup.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ledger, err := w.Driver.Ledger(ctx)
	if err == nil {
		err = rig.CheckExclusive(ledger)
	}
	requests, auditErr := w.CheckAudit()
	if auditErr == nil && requests == 0 {
		auditErr = errors.New("the audit log has no request of ha-sidecar")
	}
	err = errors.Join(err, auditErr, w.Stop(), w.other.Stop(10*time.Second))
	if err == nil && passed {
		return os.RemoveAll(w.dir)
	}
	fmt.Fprintf(os.Stderr, "the logs are in %s\n", filepath.Join(w.dir, "logs"))
	return err
}

// otherDriver is a second CSI driver, which nobody here fences: a node service
// without a controller, on the same machine.
const (
	otherDriver = "other.csi.example.com"
	otherNode   = "other-1"
)

func (w *world) otherSocket() string { return filepath.Join(w.dir, "other.sock") }

func startOther(w *world, dir string) (*process.Process, error) {
	path, err := rig.Program("simdriver")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "driver"), 0o755), os.MkdirAll(filepath.Join(dir, "logs"), 0o755)); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "logs", "other-driver.log"))
	if err != nil {
		return nil, err
	}
	return process.Start(process.Config{Path: path, Log: log, ReadyText: "Serving", Args: []string{
		"node", "--endpoint=unix://" + w.otherSocket(), "--state-dir=" + filepath.Join(dir, "driver"), "--node-id=" + otherNode,
		"--name=" + otherDriver, "--health=none",
	}})
}
