package binary

import (
	"os"
	"path/filepath"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

func TestUnknownFlag(t *testing.T) {
	t.Parallel()
	ends(t, 2, []string{"--no-such-flag"}, "--no-such-flag", "--help")
}

func TestFlagsThatContradict(t *testing.T) {
	t.Parallel()
	ends(t, 2, []string{"--failover-mode=enforce", "--leader-election=false"}, "--failover-mode=enforce", "--leader-election=false")
}

func TestSocketIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ends(t, 1, []string{"--csi-address=" + file}, file, "regular file", "set --csi-address")
	ends(t, 1, []string{"--csi-address=" + dir}, dir, "directory", "set --csi-address")
}

func TestNobodyAnswersAtTheSocket(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.sock")
	ends(t, 1, []string{"--csi-address=" + missing, "--csi-connect-timeout=1s"}, missing, "start the driver")
	mute := csiclienttest.Mute(t, "")
	ends(t, 1, []string{"--csi-address=" + mute, "--csi-connect-timeout=1s"}, mute, "does not answer")
	web := csiclienttest.Mute(t, "HTTP/1.1 400 Bad Request\r\n\r\n")
	ends(t, 1, []string{"--csi-address=" + web, "--csi-connect-timeout=1s"}, web, "gRPC")
}

func TestDriverThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	driver := csiclienttest.Start(t)
	driver.SetName("not a name")
	ends(t, 1, []string{"--csi-address=" + driver.Path}, driver.Path, "not a name", "GetPluginInfo")
	driver.SetName("node.csi.example.com")
	driver.SetServices(csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	ends(t, 1, []string{"--csi-address=" + driver.Path}, "node.csi.example.com", "CONTROLLER_SERVICE", "set --csi-address")
}

func TestNoWayToTheServer(t *testing.T) {
	t.Parallel()
	driver := csiclienttest.Start(t)
	address := "--csi-address=" + driver.Path
	ends(t, 1, []string{address, "--kubeconfig=/nonexistent"}, "--kubeconfig", "/nonexistent")
	ends(t, 1, []string{address}, "--kubeconfig") // outside a cluster
}

func TestNoAccessToTheLease(t *testing.T) {
	r, ctx := world(t), bounded(t)
	_, err := r.Client.CoreV1().ServiceAccounts(rig.SidecarNamespace).Create(ctx,
		&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "nobody"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nobody, err := r.Cluster.ServiceAccountKubeconfig(ctx, rig.SidecarNamespace, "nobody")
	if err != nil {
		t.Fatal(err)
	}
	address := "--csi-address=" + driverSocket()
	ends(t, 1, []string{address, "--kubeconfig=" + nobody, "--leader-election-namespace=" + rig.SidecarNamespace},
		"no access to lease csi-sim/ha-sidecar-sim-csi-ha-sidecar-io", "grant get, create and update on leases in that namespace")
	ends(t, 1, []string{address, "--kubeconfig=" + r.Cluster.Kubeconfig(), "--leader-election-namespace=nowhere"},
		"lease nowhere/", "create the namespace")
	ends(t, 2, []string{address, "--kubeconfig=" + r.Cluster.Kubeconfig()}, "--leader-election-namespace")
}
