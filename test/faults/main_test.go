package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"go.uber.org/goleak"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

var (
	all = flag.Bool("all", false, "play every point, and not a sample of them")
	out = flag.String("out", "", "folder for faults.json; empty: it is not written")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	startBound = 2 * time.Minute
	// playBound is far above what a play takes.
	playBound = 2 * time.Minute
)

// world is a rig whose ha-sidecar goes through the proxies. It has one process
// of it at a time.
type world struct {
	*rig.Rig
	trap    *trap
	api     *apiProxy
	csi     *csiProxy
	flags   []string
	sidecar *rig.Sidecar
}

func startWorld(t *testing.T) *world {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), startBound, errors.New("the world took too long to start"))
	defer cancel()
	// Unix sockets have short names: the world lives in a short directory.
	dir, err := os.MkdirTemp("", "ha-faults-")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{trap: &trap{}}
	w.Rig, err = rig.Start(ctx, rig.Config{
		Dir: dir, Nodes: 3, Log: os.Stderr,
		Values: []string{
			"failover.mode=enforce", "failover.fence=unpublish", "failover.maxFailingNodes=100%",
			"failover.evictDeadline=2s", "failover.evictGraceMax=1s", "failover.holdOff=1s", "health.confirmAfter=1s", "health.interval=1s",
		},
		SidecarArgs: []string{"--suspect-for=2s", "--attacher-timeout=1s", "--workload-free-moves=1000", "--provisioner-timeout=1s"},
		NodeArgs:    []string{"--volume-health-interval=500ms", "--lease-renew-interval=1s"},
		ClusterArgs: []string{"kube-controller-manager=--attach-detach-reconcile-sync-period=2s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.stop(t, dir) })
	if w.api, err = startAPIProxy(w.trap, w.Cluster.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "trap.sock")
	if w.csi, err = startCSIProxy(w.trap, filepath.Join(dir, "driver.sock"), socket); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := w.SidecarKubeconfig(ctx)
	if err == nil {
		kubeconfig, err = w.api.kubeconfig(kubeconfig)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.flags = []string{"--kubeconfig=" + kubeconfig, "--csi-address=" + socket}
	if _, err := w.NewClass(ctx, className, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.goesOn(ctx); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) stop(t *testing.T, dir string) {
	err := w.Stop()
	if w.api != nil {
		w.api.stop()
	}
	if w.csi != nil {
		err = errors.Join(err, w.csi.stop())
	}
	if err != nil {
		t.Error(err)
	}
	if t.Failed() {
		fmt.Fprintf(os.Stderr, "the logs are in %s\n", filepath.Join(dir, "logs"))
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// goesOn starts the next process. The leases of the last one, which is dead,
// would only have to run out; what it may have left under way is waited for as
// ever.
func (w *world) goesOn(ctx context.Context) error {
	err := w.Client.CoordinationV1().Leases(rig.SidecarNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err == nil {
		w.sidecar, err = w.StartSidecar(ctx, w.flags...)
	}
	return err
}

func (w *world) await(ctx context.Context, t *testing.T, what string, holds func() bool) {
	t.Helper()
	if err := w.Await(ctx, what, holds); err != nil {
		t.Fatal(err)
	}
}
