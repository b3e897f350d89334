package binary

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	attacher "github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/failover"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// await fails the test if the condition does not come to hold in time.
func await(ctx context.Context, t *testing.T, r *rig.Rig, what string, holds func() bool) {
	t.Helper()
	if err := r.Await(ctx, what, holds); err != nil {
		t.Fatal(err)
	}
}

// pair waits until, of two replicas, one leads, and returns both.
func pair(ctx context.Context, t *testing.T, r *rig.Rig) (leader, standby *rig.Sidecar) {
	t.Helper()
	var alive []*rig.Sidecar
	for _, s := range r.Sidecars {
		select {
		case <-s.Done():
		default:
			alive = append(alive, s)
		}
	}
	r.Sidecars = alive
	for len(r.Sidecars) < 2 {
		if _, err := r.StartSidecar(ctx); err != nil {
			t.Fatal(err)
		}
	}
	await(ctx, t, r, "a replica leads", func() bool { leader = r.Leader(); return leader != nil })
	for _, s := range r.Sidecars {
		if s != leader {
			standby = s
		}
	}
	return leader, standby
}

// ended waits for a replica's end and gives its exit code.
func ended(ctx context.Context, t *testing.T, p *process.Process) int {
	t.Helper()
	select {
	case <-p.Done():
	case <-ctx.Done():
		t.Fatalf("the process does not end: %v", context.Cause(ctx))
	}
	return p.ExitCode()
}

func TestStandbyIsReady(t *testing.T) {
	r, ctx := world(t), bounded(t)
	leader, standby := pair(ctx, t, r)
	for _, s := range []*rig.Sidecar{leader, standby} {
		for _, path := range []string{"/healthz", "/healthz/leader-election", "/livez", "/readyz"} {
			if err := s.Get(path); err != nil {
				t.Error(err)
			}
		}
	}
	body, err := standby.Body("/debug/leader")
	if err != nil || !strings.Contains(body, "waits: lease csi-sim/ha-sidecar-sim-csi-ha-sidecar-io is held by ") {
		t.Errorf("the standby says %q, %v; want what it waits for", body, err)
	}
}

func TestMetrics(t *testing.T) {
	r, ctx := world(t), bounded(t)
	leader, _ := pair(ctx, t, r)
	body, err := leader.Body("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`csi_sidecar_operations_seconds_count{driver_name="sim.csi.ha-sidecar.io"`, "ha_sidecar_build_info{", "ha_sidecar_volumes{",
		"ha_sidecar_attach_lane_depth{", "ha_sidecar_failover_breaker_open", "leader_election_master_status{",
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// The driver gone means not ready and no restart loop.
func TestDriverGone(t *testing.T) {
	r, ctx := world(t), bounded(t)
	leader, standby := pair(ctx, t, r)
	if err := r.Driver.DropSocket(ctx, 3*time.Second); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*rig.Sidecar{leader, standby} {
		await(ctx, t, r, "a replica tells that the driver is gone", func() bool {
			err := s.Get("/readyz")
			return err != nil && strings.Contains(err.Error(), "503") && strings.Contains(err.Error(), "[-]driver")
		})
		if err := s.Get("/healthz"); err != nil {
			t.Errorf("not alive without the driver: %v", err)
		}
	}
	for _, s := range []*rig.Sidecar{leader, standby} {
		await(ctx, t, r, "a replica is ready again", func() bool { return s.Get("/readyz") == nil })
		if s.Err() != nil {
			t.Error(s.Err())
		}
	}
	if r.Leader() != leader {
		t.Error("the leader has changed although only the driver was gone")
	}
}

func freeEndpoint(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestDriverUnderAnotherName(t *testing.T) {
	r, ctx := world(t), bounded(t)
	driver := csiclienttest.Start(t)
	path, err := rig.Program("ha-sidecar")
	if err != nil {
		t.Fatal(err)
	}
	endpoint := freeEndpoint(t)
	p, err := process.Start(process.Config{Path: path, Args: []string{
		"--csi-address=" + driver.Path, "--kubeconfig=" + r.Cluster.Kubeconfig(), "--leader-election-namespace=" + rig.SidecarNamespace,
		"--http-endpoint=" + endpoint,
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := &rig.Sidecar{Process: p, Endpoint: endpoint}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	ready := func() bool { return s.Get("/readyz") == nil }
	await(ctx, t, r, "ha-sidecar is ready", ready)
	restart := func(name string) {
		driver.Stop()
		driver.SetName(name)
		driver.Start()
	}
	restart("other.csi.example.com")
	await(ctx, t, r, "the other name is told", func() bool {
		err := s.Get("/readyz")
		return err != nil && strings.Contains(err.Error(), "changed its name from "+csiclienttest.Name+" to other.csi.example.com")
	})
	restart(csiclienttest.Name)
	await(ctx, t, r, "ha-sidecar is ready again", ready)
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

func holders(ctx context.Context, t *testing.T, r *rig.Rig) map[string]string {
	t.Helper()
	leases, err := r.Client.CoordinationV1().Leases(rig.SidecarNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for i := range leases.Items {
		if name := leases.Items[i].Name; strings.Contains(name, "sim-csi-ha-sidecar-io") {
			found[name] = ""
			if h := leases.Items[i].Spec.HolderIdentity; h != nil {
				found[name] = *h
			}
		}
	}
	return found
}

func TestStopReleasesTheLeases(t *testing.T) {
	r, ctx := world(t), bounded(t)
	leader, standby := pair(ctx, t, r)
	before := holders(ctx, t, r)
	if len(before) != 4 {
		t.Errorf("leases %v, want ours and those of three replaced sidecars", before)
	}
	if err := leader.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := ended(ctx, t, leader.Process); code != 0 {
		t.Errorf("the leader ended with %d, want 0: %s", code, leader.Tail())
	}
	r.Sidecars = []*rig.Sidecar{standby}
	await(ctx, t, r, "the standby leads", func() bool { return r.Leader() == standby })
	for name, holder := range holders(ctx, t, r) {
		if holder == "" || holder == before[name] {
			t.Errorf("lease %s is held by %q, was by %q; want the standby", name, holder, before[name])
		}
	}
	if err := standby.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := ended(ctx, t, standby.Process); code != 0 {
		t.Errorf("the last replica ended with %d, want 0: %s", code, standby.Tail())
	}
	for name, holder := range holders(ctx, t, r) {
		if holder != "" {
			t.Errorf("lease %s is still held by %s", name, holder)
		}
	}
	r.Sidecars = nil
}

// page fetches a debug page.
func page[T any](t *testing.T, s *rig.Sidecar, path string) (leads bool, content T) {
	t.Helper()
	body, err := s.Body(path)
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		Leads   bool `json:"leads"`
		Content T    `json:"content"`
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("%s: %v: %s", path, err, body)
	}
	return p.Leads, p.Content
}

func TestDebugPages(t *testing.T) {
	r, ctx := world(t), bounded(t)
	leader, standby := pair(ctx, t, r)
	pv, err := r.NewVolume(ctx, "debugged")
	if err != nil {
		t.Fatal(err)
	}
	attach(ctx, t, r, "debugged")
	handle := pv.Spec.CSI.VolumeHandle
	await(ctx, t, r, "the page shows the attached volume", func() bool {
		leads, volumes := page[[]attacher.VolumeStatus](t, leader, "/debug/attach")
		return leads && slices.ContainsFunc(volumes, func(v attacher.VolumeStatus) bool {
			return string(v.Handle) == handle && v.Holds && len(v.Nodes) == 1 && v.Nodes[0].Node == "node-1" && v.Nodes[0].State == attacher.Attached
		})
	})
	condition := simctl.Condition{Kind: state.Inaccessible, Reason: "CableCut"}
	if err := r.Driver.SetHealth(ctx, handle, "", condition); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, r, "the page shows the volume's health", func() bool {
		_, volumes := page[[]struct {
			Volume     string             `json:"volume"`
			State      volume.State       `json:"state"`
			Source     volume.Source      `json:"source"`
			Conditions []volume.Condition `json:"conditions"`
		}](t, leader, "/debug/health")
		return len(volumes) == 1 && volumes[0].Volume == handle && volumes[0].State == volume.StateInaccessible &&
			volumes[0].Source == volume.SourceController && volumes[0].Conditions[0].Reason == "CableCut"
	})
	if err := r.Driver.SetHealth(ctx, handle, ""); err != nil {
		t.Fatal(err)
	}
	if leads, _ := page[[]attacher.VolumeStatus](t, standby, "/debug/attach"); leads {
		t.Error("the standby says that it leads")
	}
	if leads, decision := page[failover.Decision](t, leader, "/debug/failover"); !leads || decision.Brake.Carriers != 1 {
		t.Errorf("leads %v, decision %+v; want the leader's, with one node that carries the driver", leads, decision)
	}
	page[[]failover.Answer](t, leader, "/debug/failover?pod=default/none")
}
