package virtualnode

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// stubNode answers Ping by a function.
type stubNode struct {
	kri.NodeProvider
	ping func(context.Context) error
}

func (s stubNode) Ping(ctx context.Context) error { return s.ping(ctx) }

func TestPingIsSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		release := make(chan struct{})
		p := newPinger(stubNode{ping: func(context.Context) error { // Ignores its context.
			calls.Add(1)
			<-release
			return nil
		}}, time.Second)
		for range 5 {
			if err := p.ping(t.Context()); !errors.Is(err, errPingHangs) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a hanging ping: %v", err)
			}
		}
		if calls.Load() != 1 {
			t.Errorf("%d questions at once", calls.Load())
		}
		close(release)
		p.wait()
		if err := p.ping(t.Context()); err != nil || calls.Load() != 2 {
			t.Errorf("released: %v after %d questions", err, calls.Load())
		}
	})
}

func TestPingPassesErrors(t *testing.T) {
	broken := errors.New("broken")
	p := newPinger(stubNode{ping: func(context.Context) error { return broken }}, time.Minute)
	if err := p.ping(t.Context()); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func testConfig(t *testing.T) *Config {
	t.Helper()
	cfg := &Config{Name: "n1", RootDir: t.TempDir(), Client: fake.NewClientset()}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestNodeProvider(t *testing.T) {
	cfg := testConfig(t)
	clock := testingclock.NewFakeClock(t0)
	cfg.Clock, cfg.Zone, cfg.Labels = clock, "z1", map[string]string{"rack": "7"}
	inUse := []v1.UniqueVolumeName{}
	p := &nodeProvider{cfg: cfg, inUse: func() []v1.UniqueVolumeName { return inUse }}
	p.boot("boot-1")
	node := p.ConfigureNode(t.Context(), "n1")
	if node.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"] != "true" {
		t.Errorf("annotations: %v", node.Annotations)
	}
	if node.Labels[v1.LabelHostname] != "n1" || node.Labels[v1.LabelTopologyZone] != "z1" || node.Labels["rack"] != "7" {
		t.Errorf("labels: %v", node.Labels)
	}
	status := &node.Status
	if status.NodeInfo.BootID != "boot-1" || status.Capacity.Pods().Value() != 110 || nodeCondition(status, v1.NodeReady).Status != v1.ConditionTrue {
		t.Errorf("status: %+v", status)
	}
	status.Conditions = append(status.Conditions, v1.NodeCondition{Type: "Foreign", Status: "Odd"})
	clock.Step(time.Minute)
	if p.RefreshNodeStatus(t.Context(), status) {
		t.Error("a heartbeat counts as a change")
	}
	ready := nodeCondition(status, v1.NodeReady)
	if !ready.LastHeartbeatTime.Time.Equal(t0.Add(time.Minute)) || !ready.LastTransitionTime.Time.Equal(t0) {
		t.Errorf("heartbeat %v, transition %v", ready.LastHeartbeatTime, ready.LastTransitionTime)
	}
	if nodeCondition(status, "Foreign").Status != "Odd" {
		t.Error("a foreign condition was touched")
	}
	inUse = []v1.UniqueVolumeName{"v"}
	if !p.RefreshNodeStatus(t.Context(), status) || len(status.VolumesInUse) != 1 {
		t.Error("a volume in use is no change")
	}
	told := 0
	p.SetStatusUpdateCallback(t.Context(), func(*v1.Node) { told++ })
	p.stop()
	if !p.RefreshNodeStatus(t.Context(), status) || nodeCondition(status, v1.NodeReady).Status != v1.ConditionFalse || told != 1 {
		t.Errorf("stopped: %+v, told %d times", nodeCondition(status, v1.NodeReady), told)
	}
}

func nodeCondition(status *v1.NodeStatus, kind v1.NodeConditionType) v1.NodeCondition {
	for _, c := range status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

func TestHungPingFault(t *testing.T) {
	cfg := testConfig(t)
	p := &nodeProvider{cfg: cfg}
	if err := p.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	cfg.Faults.Set(nodectl.HungPing)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Ping(ctx); err == nil {
		t.Error("the ping does not hang")
	}
}

func TestBootID(t *testing.T) {
	root := t.TempDir()
	id := func(given string, leftovers bool) string {
		t.Helper()
		got, err := bootID(root, given, leftovers)
		if err != nil || got == "" {
			t.Fatalf("%q, %v", got, err)
		}
		return got
	}
	first := id("", true) // Leftovers, but of nobody knows when.
	if got := id("", true); got != first {
		t.Error("a restart with leftovers is a new boot")
	}
	second := id("", false)
	if second == first {
		t.Error("a restart without leftovers is the old boot")
	}
	if got := id("mine", true); got != "mine" || id("", true) != "mine" {
		t.Errorf("given: %s", got)
	}
	a := &Agent{cfg: Config{RootDir: root}}
	if err := a.markPowerOff(); err != nil {
		t.Fatal(err)
	}
	third := id("", true)
	if third == "mine" {
		t.Error("the power-off was no boot")
	}
	if _, err := os.Stat(filepath.Join(root, powerOffFile)); err == nil || id("", true) != third {
		t.Error("the power-off counts twice")
	}
}

func TestWithDriver(t *testing.T) {
	a := csiNodeDriver(csinode.Info{Name: "a", NodeID: "1", MaxVolumes: 5, Topology: map[string]string{"z": "1", "b": "2"}})
	if diff := cmp.Diff([]string{"b", "z"}, a.TopologyKeys); diff != "" || *a.Allocatable.Count != 5 {
		t.Errorf("%s %v", diff, a)
	}
	b := csiNodeDriver(csinode.Info{Name: "b", NodeID: "1"})
	if b.Allocatable != nil {
		t.Errorf("no limit became %v", b.Allocatable)
	}
	list := withDriver(withDriver(nil, a), b)
	a.NodeID = "2"
	list = withDriver(list, a)
	if len(list) != 2 || list[0].NodeID != "2" || list[1].Name != "b" {
		t.Errorf("list: %v", list)
	}
	if got := withoutDriver(list, "a"); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("without: %v", got)
	}
	if got := withoutDriver([]storagev1.CSINodeDriver{b}, "none"); len(got) != 1 {
		t.Errorf("without none: %v", got)
	}
}

// TestTopologyThatContradictsALabel: the kubelet does not register such a driver,
// and leaves the label alone.
func TestTopologyThatContradictsALabel(t *testing.T) {
	info := csinode.Info{Name: "drv", NodeID: "1", Topology: map[string]string{"zone": "a", "rack": "1"}}
	for name, test := range map[string]struct {
		labels map[string]string
		want   map[string]string
		err    string
	}{
		"no labels":        {nil, map[string]string{"zone": "a", "rack": "1"}, ""},
		"one is there":     {map[string]string{"zone": "a", "x": "y"}, map[string]string{"zone": "a", "rack": "1", "x": "y"}, ""},
		"another place":    {map[string]string{"zone": "b"}, map[string]string{"zone": "b"}, `label zone is "b", and driver drv says "a"`},
		"an empty label":   {map[string]string{"zone": ""}, map[string]string{"zone": ""}, `label zone is ""`},
		"all labels there": {map[string]string{"zone": "a", "rack": "1"}, map[string]string{"zone": "a", "rack": "1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: test.labels}})
			a := &Agent{cfg: Config{Name: "n1", Client: client, APITimeout: time.Minute}}
			err := a.registerCSINode(t.Context(), info)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("registering: %v, want %q", err, test.err)
			}
			node, getErr := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if getErr != nil {
				t.Fatal(getErr)
			}
			if diff := cmp.Diff(test.want, node.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			csiNode, getErr := client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err != nil {
				if !apierrors.IsNotFound(getErr) {
					t.Errorf("the driver was registered all the same: %v, %v", csiNode, getErr)
				}
				return
			}
			if getErr != nil {
				t.Fatal(getErr)
			}
			if diff := cmp.Diff([]string{"rack", "zone"}, csiNode.Spec.Drivers[0].TopologyKeys); diff != "" {
				t.Errorf("topology keys (-want +got):\n%s", diff)
			}
		})
	}
}

func TestConfigRefuses(t *testing.T) {
	good := func() Config { return Config{Name: "n", RootDir: "/x", Client: fake.NewClientset()} }
	cfg := good()
	if err := cfg.complete(); err != nil || cfg.LeaseDuration != 40*time.Second || cfg.CPU.IsZero() {
		t.Errorf("defaults: %v", err)
	}
	for what, spoil := range map[string]func(*Config){
		"name":     func(c *Config) { c.Name = "No_Name" },
		"root":     func(c *Config) { c.RootDir = "x" },
		"client":   func(c *Config) { c.Client = nil },
		"negative": func(c *Config) { c.CSITimeout = -1 },
		"renewal":  func(c *Config) { c.LeaseRenewInterval = time.Hour },
		"lease":    func(c *Config) { c.LeaseDuration, c.LeaseRenewInterval = time.Millisecond, time.Microsecond },
	} {
		cfg := good()
		spoil(&cfg)
		if err := cfg.complete(); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}
