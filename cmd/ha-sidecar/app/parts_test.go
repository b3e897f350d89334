package app

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/internal/leader"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestMain(m *testing.M) {
	// The flusher of the logs lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("k8s.io/component-base/logs.FlushLogs"),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

func TestEnabledControllers(t *testing.T) {
	for selection, want := range map[string]string{
		"*":                  "health failover provisioner attacher",
		"*,-failover":        "health provisioner attacher",
		"-failover,*":        "health provisioner attacher",
		"provisioner":        "provisioner",
		"*,-provisioner":     "health failover attacher",
		"attacher":           "attacher",
		"health":             "health",
		"attacher,health":    "health attacher",
		"health,failover":    "health failover",
		"*,attacher":         "health failover provisioner attacher",
		"attacher,-attacher": "!runs nothing",
		"":                   "!no controller",
		"-failover":          "!runs nothing",
		"failover,attacher":  "!failover needs health",
		"*,-health":          "!failover needs health",
		"nosuch":             "!health, failover, provisioner, attacher",
		"*,-nosuch":          "!no controller",
		"Health":             "!no controller",
	} {
		got, err := enabledControllers(strings.Split(selection, ","))
		if message, fails := strings.CutPrefix(want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), message) || !strings.Contains(err.Error(), "--controllers") {
				t.Errorf("--controllers=%s: %v, %v; want an error with %q", selection, got, err, message)
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("--controllers=%s: %v, %v; want %s", selection, got, err, want)
		}
	}
}

func TestLeaseNames(t *testing.T) {
	all := []string{controllerHealth, controllerFailover, controllerProvisioner, controllerAttacher}
	for _, c := range []struct {
		driver  string
		enabled []string
		want    []string
	}{
		{"ebs.csi.aws.com", all, []string{"ha-sidecar-ebs-csi-aws-com", "ebs-csi-aws-com", "external-attacher-leader-ebs-csi-aws-com", "external-health-monitor-leader-ebs-csi-aws-com"}},
		{"d.example.com", []string{controllerAttacher}, []string{"ha-sidecar-d-example-com", "external-attacher-leader-d-example-com"}},
		{"d.example.com", []string{controllerProvisioner}, []string{"ha-sidecar-d-example-com", "d-example-com"}},
		{"d.example.com", []string{controllerHealth, controllerFailover}, []string{"ha-sidecar-d-example-com", "external-health-monitor-leader-d-example-com"}},
		// A name that the API server would refuse is waited for in vain.
		{"Storage.Example.com", []string{controllerAttacher}, []string{"ha-sidecar-storage-example-com", "external-attacher-leader-storage-example-com"}},
	} {
		if diff := cmp.Diff(c.want, leaseNames(c.driver, c.enabled)); diff != "" {
			t.Errorf("leaseNames(%s, %v) (-want +got):\n%s", c.driver, c.enabled, diff)
		}
	}
	// The order is the same whatever the order of --controllers, or two
	// processes would wait for each other.
	slices.Reverse(all)
	if got := leaseNames("d", all); got[1] != "d" || got[2] != "external-attacher-leader-d" {
		t.Errorf("leaseNames() = %v in another order", got)
	}
}

// leads is an election that a test decides.
type leads bool

func (l leads) IsLeader() bool                                { return bool(l) }
func (leads) Waiting() string                                 { return "lease a/b is held by other" }
func (leads) Run(ctx context.Context, lead leader.Lead) error { return lead(ctx, ctx) }

// W5: no call that changes something reaches the driver once the lease has run
// out.
func TestGuardedDriver(t *testing.T) {
	driver := csiclienttest.Start(t, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	done := func(_ context.Context, req any) (any, error) {
		switch req.(type) {
		case *csi.ControllerPublishVolumeRequest:
			return &csi.ControllerPublishVolumeResponse{}, nil
		case *csi.ControllerUnpublishVolumeRequest:
			return &csi.ControllerUnpublishVolumeResponse{}, nil
		case *csi.CreateVolumeRequest:
			return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "v"}}, nil
		default:
			return &csi.DeleteVolumeResponse{}, nil
		}
	}
	for _, method := range []string{"ControllerPublishVolume", "ControllerUnpublishVolume", "CreateVolume", "DeleteVolume"} {
		driver.Handle(method, done)
	}
	client, err := csiclient.New(csiclient.Config{Address: driver.Path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	if err := client.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		leads leads
		want  int
	}{{false, 0}, {true, 1}} {
		g := guarded{client, c.leads}
		_, publish := g.ControllerPublish(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n", VolumeCapability: &csi.VolumeCapability{}})
		_, unpublish := g.ControllerUnpublish(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: "n"})
		_, create := g.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "v", VolumeCapabilities: []*csi.VolumeCapability{{}}})
		_, remove := g.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "v"})
		for method, err := range map[string]error{
			"ControllerPublishVolume": publish, "ControllerUnpublishVolume": unpublish, "CreateVolume": create, "DeleteVolume": remove,
		} {
			if n := len(driver.Requests(method)); n != c.want {
				t.Errorf("leads=%v: %d calls of %s, want %d", c.leads, n, method, c.want)
			}
			if bool(c.leads) {
				if err != nil {
					t.Errorf("%s: %v while leading", method, err)
				}
				continue
			}
			var outcome volume.Outcomer
			if !errors.Is(err, kube.ErrNotLeader) || !errors.As(err, &outcome) || outcome.Outcome() != volume.OutcomeRetry {
				t.Errorf("%s: %v, want ErrNotLeader with the outcome retry", method, err)
			}
		}
	}
}

// The clients ask the election before there is one: nobody leads then.
func TestElectionBeforeItIsKnown(t *testing.T) {
	e := &election{}
	if e.IsLeader() || e.Waiting() != "" {
		t.Error("leads before the election is known")
	}
	e.set(leads(false))
	if e.IsLeader() || e.Waiting() == "" {
		t.Error("does not ask the election")
	}
	e.set(leader.None{})
	if !e.IsLeader() {
		t.Error("does not lead without an election")
	}
}

func TestCachesAreNotReadyAtFirst(t *testing.T) {
	if err := new(caches).ready(); err == nil || !strings.Contains(err.Error(), "caches are not synced") {
		t.Errorf("ready() = %v", err)
	}
}

// The chart gives the role to read heartbeats with the health controller alone.
func TestHeartbeatsAreForHealthAlone(t *testing.T) {
	for controller, want := range map[string]int{controllerAttacher: 0, controllerHealth: 1} {
		p := &process{enabled: []string{controller}}
		if got := len(p.heartbeats(lazy{})); got != want {
			t.Errorf("with %s alone %d informers of leases run, want %d", controller, got, want)
		}
	}
}

func TestTimeoutsFollowTheFlags(t *testing.T) {
	o := parse(t, "--timeout=10s", "--hold-off=1s")
	if o.attachHoldOff() != 10*time.Second || o.fenceTimeout() != 30*time.Second {
		t.Errorf("hold-off %v, fence timeout %v", o.attachHoldOff(), o.fenceTimeout())
	}
	o = parse(t, "--timeout=10s", "--attacher-timeout=1m")
	if o.attachHoldOff() != time.Minute {
		t.Errorf("hold-off %v, want the attacher's own timeout", o.attachHoldOff())
	}
	// The leader before may have had a longer timeout.
	o = parse(t, "--timeout=10s", "--hold-off=40s")
	if o.attachHoldOff() != 40*time.Second || o.fenceTimeout() != time.Minute {
		t.Errorf("hold-off %v, fence timeout %v, want --hold-off to count", o.attachHoldOff(), o.fenceTimeout())
	}
}

// What is not confirmed yet counts in the brake for as long as that may take.
func TestStormWindowFollowsTheFlags(t *testing.T) {
	for flags, least := range map[string]time.Duration{
		"--health-interval=30s --health-confirmations=3": 99 * time.Second,
		"--health-confirmations=5":                       165 * time.Second,
		"--health-interval=1s":                           3300 * time.Millisecond,
		"--health-confirm-after=1h":                      time.Hour,
	} {
		got := parse(t, strings.Fields(flags)...).policy("d").StormWindow
		if got < least || got > least+time.Minute {
			t.Errorf("%s: %v, want at least %v", flags, got, least)
		}
	}
}

func TestOneLine(t *testing.T) {
	if got := oneLine(errors.Join(errors.New("a"), errors.New("b\n\nc\n"))); got != "a; b; c" {
		t.Errorf("oneLine() = %q", got)
	}
}

// A failure that is no mistake in the command line is exit code 1.
func TestFailureIsOneLine(t *testing.T) {
	code, _, stderr := runMain(t, "--csi-address=/nonexistent/csi.sock", "--http-endpoint=nonsense")
	if code != exitFailure || strings.Count(stderr, "\nha-sidecar: ")+1 > 2 || !strings.Contains(stderr, "listening on --http-endpoint nonsense") {
		t.Errorf("%d, %q", code, stderr)
	}
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "ha-sidecar: ") {
		t.Errorf("the last line is %q", last)
	}
}
