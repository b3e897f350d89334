package csinode_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode/csinodetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T, endpoint string, timeout time.Duration) *csinode.Client {
	t.Helper()
	c, err := csinode.New(csinode.Config{Endpoint: endpoint, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []csinode.Config{{Endpoint: "tcp://x:1", Timeout: time.Second}, {Endpoint: "unix:///x"}} {
		if _, err := csinode.New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}

func TestDescribe(t *testing.T) {
	d := &csinodetest.Driver{
		Name: "drv", NodeID: "id-1", MaxVolumes: 7, Topology: map[string]string{"zone": "a"},
		Capabilities: []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
	info, err := newClient(t, csinodetest.Start(t, d), time.Minute).Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := csinode.Info{
		Name: "drv", NodeID: "id-1", MaxVolumes: 7, Topology: map[string]string{"zone": "a"},
		Capabilities: map[csi.NodeServiceCapability_RPC_Type]bool{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME: true},
	}
	if diff := cmp.Diff(want, info); diff != "" {
		t.Error(diff)
	}
	if !info.Has(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) || info.Has(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH) {
		t.Error("Has does not tell the capabilities")
	}
}

func TestDescribeRefusesTheNameless(t *testing.T) {
	for _, d := range []*csinodetest.Driver{{NodeID: "n"}, {Name: "d"}} {
		if _, err := newClient(t, csinodetest.Start(t, d), time.Minute).Describe(t.Context()); err == nil {
			t.Errorf("%q on %q was accepted", d.Name, d.NodeID)
		}
	}
}

func TestCallsHaveDeadlines(t *testing.T) {
	d := &csinodetest.Driver{Name: "d", NodeID: "n", OnCall: func(ctx context.Context, _ csinodetest.Call) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	c := newClient(t, csinodetest.Start(t, d), 50*time.Millisecond)
	err := c.Stage(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "v"})
	if status.Code(errors.Unwrap(err)) != codes.DeadlineExceeded || !strings.HasPrefix(err.Error(), "NodeStageVolume: ") {
		t.Errorf("a call that hangs: %v", err)
	}
}

func TestCallsCarryWhatTheyAreGiven(t *testing.T) {
	d := &csinodetest.Driver{Name: "d", NodeID: "n"}
	c := newClient(t, csinodetest.Start(t, d), time.Minute)
	if err := c.Unpublish(t.Context(), "v", "/target"); err != nil {
		t.Fatal(err)
	}
	if err := c.Unstage(t.Context(), "v", "/staging"); err != nil {
		t.Fatal(err)
	}
	calls := d.Calls()
	if got := calls[0].Request.(*csi.NodeUnpublishVolumeRequest); got.GetTargetPath() != "/target" {
		t.Errorf("unpublish: %v", got)
	}
	if got := calls[1].Request.(*csi.NodeUnstageVolumeRequest); got.GetStagingTargetPath() != "/staging" {
		t.Errorf("unstage: %v", got)
	}
}

func TestVolumeHealth(t *testing.T) {
	long := strings.Repeat("é", 1000) // 2000 bytes
	entry := func(kind csi.VolumeHealthErrorType, reason, message string) *csi.VolumeHealth_VolumeHealthEntry {
		return &csi.VolumeHealth_VolumeHealthEntry{Status: kind, Reason: reason, Message: message}
	}
	var many []*csi.VolumeHealth_VolumeHealthEntry
	for i := range 20 {
		many = append(many, entry(csi.VolumeHealthErrorType_DEGRADED, "R"+strings.Repeat("x", i), ""))
	}
	for name, tc := range map[string]struct {
		in    []*csi.VolumeHealth_VolumeHealthEntry
		want  []v1.VolumeHealthCondition
		count int
	}{
		"healthy": {},
		"kinds": {in: []*csi.VolumeHealth_VolumeHealthEntry{
			entry(csi.VolumeHealthErrorType_INACCESSIBLE, "A", "m"), entry(csi.VolumeHealthErrorType_DATA_LOSS, "B", ""),
			entry(csi.VolumeHealthErrorType_DEGRADED, "C", ""),
		}, want: []v1.VolumeHealthCondition{
			{Status: v1.VolumeHealthInaccessible, Reason: "A", Message: "m"}, {Status: v1.VolumeHealthDataLoss, Reason: "B"},
			{Status: v1.VolumeHealthDegraded, Reason: "C"},
		}},
		"unknown kinds and the reasonless are dropped": {in: []*csi.VolumeHealth_VolumeHealthEntry{
			entry(99, "A", ""), entry(0, "B", ""), entry(csi.VolumeHealthErrorType_DEGRADED, "", "m"), nil,
		}},
		"duplicates": {in: []*csi.VolumeHealth_VolumeHealthEntry{
			entry(csi.VolumeHealthErrorType_DEGRADED, "A", "1"), entry(csi.VolumeHealthErrorType_DEGRADED, "A", "2"),
		}, want: []v1.VolumeHealthCondition{{Status: v1.VolumeHealthDegraded, Reason: "A", Message: "1"}}},
		"too many": {in: many, count: 16},
		"too long": {in: []*csi.VolumeHealth_VolumeHealthEntry{entry(csi.VolumeHealthErrorType_DEGRADED, long, long)},
			want: []v1.VolumeHealthCondition{{Status: v1.VolumeHealthDegraded, Reason: long[:256], Message: long[:1024]}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &csinodetest.Driver{Name: "d", NodeID: "n"}
			d.SetHealth(tc.in...)
			got, err := newClient(t, csinodetest.Start(t, d), time.Minute).VolumeHealth(t.Context(), "v", "/t", "/s")
			if err != nil {
				t.Fatal(err)
			}
			if tc.count > 0 {
				if len(got) != tc.count {
					t.Errorf("%d conditions, want %d", len(got), tc.count)
				}
			} else if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRegistry(t *testing.T) {
	r := csinode.NewRegistry()
	if _, err := r.Get("d"); err == nil || !strings.Contains(err.Error(), "d is not registered") {
		t.Errorf("an unknown driver: %v", err)
	}
	r.Add(csinode.Driver{Info: csinode.Info{Name: "d", NodeID: "old"}})
	r.Add(csinode.Driver{Info: csinode.Info{Name: "d", NodeID: "new"}})
	if got, err := r.Get("d"); err != nil || got.NodeID != "new" || len(r.All()) != 1 {
		t.Errorf("got %v, %v, %d in all", got, err, len(r.All()))
	}
}
