package attach

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
	retryStart    = 500 * time.Millisecond
)

// sidecarArgs are those of every replica.
var sidecarArgs = []string{
	"--timeout=" + callTimeout.String(), "--reconcile-sync=2s",
	"--attacher-retry-interval-start=" + retryStart.String(), "--attacher-retry-interval-max=8s",
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil { // they wait most of the time
		panic(err)
	}
	os.Exit(rig.RunTests(context.Background(), m, func(ctx context.Context) { common.ctx = ctx }, common.close))
}

// common is the world that the tests share. Only TestMain and shared touch it.
var common shared

type shared struct {
	ctx   context.Context
	once  sync.Once
	world *world
	err   error
}

// world is a rig, and the wire of the replica that leads unless a test says
// otherwise.
type world struct {
	*rig.Rig
	dir  string
	wire *wire
}

// sharedWorld starts the world for the first test that asks.
func sharedWorld(t *testing.T) *world {
	t.Helper()
	common.once.Do(func() { common.world, common.err = startWorld(common.ctx) })
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.world
}

func startWorld(ctx context.Context) (*world, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startBound, fmt.Errorf("a world takes more than %v to start", startBound))
	defer cancel()
	// Unix sockets have short names: the world lives in a short directory.
	dir, err := os.MkdirTemp("", "ha-attach-")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	if w.wire, err = newWire(filepath.Join(dir, "wire.sock"), filepath.Join(dir, "driver.sock")); err != nil {
		return nil, err
	}
	w.Rig, err = rig.Start(ctx, rig.Config{
		Dir: dir, Nodes: 2, Replicas: 1, AuditLog: filepath.Join(dir, "audit.log"), ControllerManagerApart: true,
		ClusterArgs: []string{
			"kube-controller-manager=--attach-detach-reconcile-sync-period=2s", "kube-controller-manager=--pvclaimbinder-sync-period=1s",
		},
		Values: []string{
			"rbac.secretNamespaces={" + rig.Namespace + "}", "failover.holdOff=1s", "health.interval=2s",
			"leaderElection.leaseDuration=" + leaseDuration.String(), "leaderElection.renewDeadline=" + renewDeadline.String(), "leaderElection.retryPeriod=1s",
		},
		SidecarArgs: append([]string{"--csi-address=" + w.wire.socket}, sidecarArgs...),
	})
	if err != nil {
		w.wire.close()
		return nil, fmt.Errorf("%w; the logs are in %s", err, filepath.Join(dir, "logs"))
	}
	return w, nil
}

// close checks what must hold whatever was tested, ends the world and, when all
// is well, removes what it leaves.
func (s *shared) close(passed bool) error {
	w := s.world
	if w == nil {
		return nil
	}
	// Not the tests' context: it has ended.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if passed {
		err = w.check(ctx)
	}
	err = errors.Join(err, w.Stop())
	w.wire.close()
	if err == nil && passed {
		return os.RemoveAll(w.dir)
	}
	fmt.Fprintf(os.Stderr, "the logs are in %s\n", filepath.Join(w.dir, "logs"))
	return err
}

// check finds what no test may leave: publications and VolumeAttachments, what
// the leader remembers of them, and in the whole history a volume on two nodes, a
// request that the role forbids, and a complaint about a person who was none.
func (w *world) check(ctx context.Context) error {
	ledger, err := w.Driver.Ledger(ctx)
	if err == nil {
		err = rig.CheckExclusive(ledger)
	}
	if publications, perr := w.Driver.Publications(ctx); perr != nil || len(publications) > 0 {
		err = errors.Join(err, perr, fmt.Errorf("%d volumes are still published: %v", len(publications), publications))
	}
	if requests, aerr := w.CheckAudit(); aerr != nil || requests == 0 {
		err = errors.Join(err, fmt.Errorf("%d requests in the audit log: %w", requests, aerr))
	}
	return errors.Join(err,
		w.Await(ctx, "the leader has forgotten all volumes", func() bool { return w.remembered() == 0 }),
		w.checkManual())
}

// checkManual holds that Kubernetes' own detaches are never taken for a person's.
func (w *world) checkManual() error {
	for _, e := range w.EventsOf("DeletedWhileInUse") {
		if !deletedByHand(e.InvolvedObject.Name) {
			return fmt.Errorf("an event says that %s was deleted by hand", e.InvolvedObject.Name)
		}
	}
	return nil
}

// remembered is how much the leader knows of; -1 while none leads.
func (w *world) remembered() float64 {
	leader := w.Leader()
	if leader == nil {
		return -1
	}
	return counted(leader, "ha_sidecar_attach_keys", "") + counted(leader, "ha_sidecar_attach_lane_depth", "")
}
