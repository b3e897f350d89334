package app

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// TestCapacityIsBesideThePod: an owner is in the namespace of what it owns, wherever
// the leases are.
func TestCapacityIsBesideThePod(t *testing.T) {
	driver := csiclienttest.Start(t, csi.ControllerServiceCapability_RPC_GET_CAPACITY)
	client, err := csiclient.New(csiclient.Config{Address: driver.Path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if err := client.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("POD_NAME", "pod")
	for name, c := range map[string]struct{ namespace, podNamespace, want string }{
		"as external-provisioner is told": {"told", "pods", "told"},
		"the Pod's":                       {"", "pods", "pods"},
		"outside a Pod":                   {"", "", "leases"},
	} {
		t.Setenv("NAMESPACE", c.namespace)
		t.Setenv("POD_NAMESPACE", c.podNamespace)
		d := deps{opts: parse(t, "--enable-capacity"), driver: client, clients: &kube.Clients{Work: fake.NewClientset()}, namespace: "leases"}
		_, err := newCapacity(t.Context(), d, topology.Fixed{topology.SegmentOf(nil)}, "me")
		if err == nil || !strings.Contains(err.Error(), "getting pod "+c.want+"/pod") {
			t.Errorf("%s: %v, want the pod to be looked for in namespace %s", name, err, c.want)
		}
	}
}
