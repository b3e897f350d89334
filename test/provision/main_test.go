// Package provision tests provisioning on a real control plane. Its tests bear
// the name of the public bug report that each is about, and state the right
// behaviour.
package provision

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	startBound = 2 * time.Minute
	// caseBound is how long anything that a test awaits may take in all.
	caseBound = 75 * time.Second
	// What the sidecars have: quick, but not so that a busy machine loses a lease.
	leaseDuration = 8 * time.Second
	renewDeadline = 6 * time.Second
	callTimeout   = 3 * time.Second
	retryStart    = 300 * time.Millisecond
	sweepInterval = 3 * time.Second
)

// sidecarArgs are those of every replica. From -v=5 on calls to the driver are
// logged, which is where a secret might be.
var sidecarArgs = []string{
	"--timeout=" + callTimeout.String(), "--snapshot-orphan-sweep-interval=" + sweepInterval.String(),
	"--retry-interval-start=" + retryStart.String(), "--retry-interval-max=4s", "--worker-threads=20", "-v=5",
}

// zones are the places of the shared world's nodes.
var zones = map[string]map[string]string{
	"node-1": {"example.com/zone": "a"}, "node-2": {"example.com/zone": "b"}, "node-3": {"example.com/zone": "c"},
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // they wait most of the time
		panic(err)
	}
	os.Exit(rig.RunTests(context.Background(), m, func(ctx context.Context) { common.ctx = ctx }, common.close))
}

// common is the world that most tests share. Only TestMain and inWorld touch it.
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
	if passed {
		if err := s.world.checkLeaks(); err != nil {
			return errors.Join(err, s.world.close(false))
		}
	}
	return s.world.close(passed)
}

// replicas of ha-sidecar that a world has, but for tests that end some.
const replicas = 2

// world is a rig with what tests keep about it.
type world struct {
	*rig.Rig
	dir string
	// forbids: permissions were taken away, and so requests are forbidden.
	forbids bool
	// ended are the replicas that a test made end.
	ended map[*rig.Sidecar]bool
}

func startWorld(ctx context.Context, cfg rig.Config) (*world, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("a world takes more than %v to start", startBound))
	defer cancel()
	// Unix sockets have short names: the world lives in a short directory.
	dir, err := os.MkdirTemp("", "ha-prov-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, ended: map[*rig.Sidecar]bool{}}
	cfg.Dir, cfg.AuditLog = dir, filepath.Join(dir, "audit.log")
	cfg.Values = append([]string{
		"leaderElection.leaseDuration=" + leaseDuration.String(), "leaderElection.renewDeadline=" + renewDeadline.String(), "leaderElection.retryPeriod=1s",
		"failover.mode=off", "rbac.secretNamespaces={*}",
	}, cfg.Values...)
	cfg.SidecarArgs = append(append([]string{}, sidecarArgs...), cfg.SidecarArgs...)
	if w.Rig, err = rig.Start(ctx, cfg); err != nil {
		return nil, fmt.Errorf("%w; the logs are in %s", err, filepath.Join(dir, "logs"))
	}
	return w, w.SnapshotCRDs(ctx)
}

// close ends the world, and keeps its logs if something went wrong.
func (w *world) close(passed bool) error {
	if !passed {
		fmt.Fprintf(os.Stderr, "the logs are in %s\n", filepath.Join(w.dir, "logs"))
		return w.Stop()
	}
	var err error
	if !w.forbids {
		_, err = w.CheckAudit()
	}
	if err = errors.Join(err, w.Stop()); err != nil {
		return fmt.Errorf("%w; the logs are in %s", err, w.dir)
	}
	return os.RemoveAll(w.dir)
}

// ownWorld starts a world for one test.
func ownWorld(t *testing.T, cfg rig.Config) *world {
	t.Helper()
	w, err := startWorld(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			if err := w.checkLeaks(); err != nil {
				t.Error(err)
			}
		}
		if err := w.close(!t.Failed()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// inWorld runs a test in the shared world, beside others.
func inWorld(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	return newScene(t, sharedWorld(t))
}

// alone runs a test in the shared world while no other does, since it ends
// replicas or needs the whole driver. All replicas are there again after it.
func alone(t *testing.T) *scene {
	t.Helper()
	s := newScene(t, sharedWorld(t))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), caseBound)
		defer cancel()
		for n := len(s.living()); n < replicas; n++ {
			if _, err := s.StartSidecar(ctx); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func sharedWorld(t *testing.T) *world {
	t.Helper()
	common.once.Do(func() {
		common.world, common.err = startWorld(common.ctx, rig.Config{
			Nodes: len(zones), Replicas: replicas, Topology: zones,
			// Its usual budget of requests would be what is measured.
			ClusterArgs: []string{"kube-controller-manager=--kube-api-qps=1000", "kube-controller-manager=--kube-api-burst=1000"},
		})
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.world
}
