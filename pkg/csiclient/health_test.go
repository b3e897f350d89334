package csiclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	capListHealth = csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH
	capGetHealth  = csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH
	capList       = csi.ControllerServiceCapability_RPC_LIST_VOLUMES
	capGet        = csi.ControllerServiceCapability_RPC_GET_VOLUME
)

func reading(handle string, conditions ...volume.Condition) volume.Reading {
	return volume.Reading{Key: volume.Key{Handle: volume.Handle(handle)}, Source: volume.SourceController, Conditions: conditions}
}

// sweep sweeps, checks that readings tell when they began, and returns the rest.
func sweep(t *testing.T, c *Client, handles ...volume.Handle) (volume.Sweep, error) {
	t.Helper()
	before := time.Now()
	got, err := c.Sweep(testContext(t), handles)
	for i := range got.Readings {
		if at := got.Readings[i].Started; at.Before(before) || at.After(time.Now()) {
			t.Errorf("A reading began at %s, want a time within the sweep", at)
		}
	}
	return got, err
}

func wantSweep(t *testing.T, got, want volume.Sweep) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(volume.Reading{}, "Started"), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("The sweep differs (-want +got):\n%s", diff)
	}
}

func TestDialectChoice(t *testing.T) {
	for _, tc := range []struct {
		caps     []csi.ControllerServiceCapability_RPC_Type
		name     string
		method   string
		abnormal bool
	}{
		{[]csi.ControllerServiceCapability_RPC_Type{capListHealth, capGetHealth, VolumeCondition, capList, capGet}, DialectV113, "ControllerListVolumeHealth", true},
		{[]csi.ControllerServiceCapability_RPC_Type{capGetHealth, VolumeCondition, capList, capGet}, DialectV113, "ControllerGetVolumeHealth", false},
		{[]csi.ControllerServiceCapability_RPC_Type{VolumeCondition, capList, capGet}, DialectLegacy, "ListVolumes", false},
		{[]csi.ControllerServiceCapability_RPC_Type{VolumeCondition, capGet}, DialectLegacy, "ControllerGetVolume", false},
		{[]csi.ControllerServiceCapability_RPC_Type{VolumeCondition}, DialectNone, "", false},
		{[]csi.ControllerServiceCapability_RPC_Type{capList, capGet}, DialectNone, "", false},
	} {
		d := csiclienttest.Start(t, tc.caps...)
		c := connected(t, d)
		if got := c.HealthDialect(); got != tc.name {
			t.Errorf("Dialect of %v = %s, want %s", tc.caps, got, tc.name)
		}
		// None of the calls is implemented: the sweep says so, as a bug.
		got, err := sweep(t, c, "v1")
		wantSweep(t, got, volume.Sweep{AbnormalOnly: tc.abnormal})
		if tc.method == "" {
			if !errors.Is(err, ErrNoHealth) {
				t.Errorf("Sweep with %v = %v, want ErrNoHealth", tc.caps, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), "does not implement "+tc.method) {
			t.Errorf("Sweep with %v = %v, want it to say that %s is not implemented", tc.caps, err, tc.method)
		}
		if n := len(d.Requests(tc.method)); n != 1 {
			t.Errorf("%s was called %d times, want once", tc.method, n)
		}
	}
}

// TestListHealth walks three pages with everything that may be odd in them.
func TestListHealth(t *testing.T) {
	d := csiclienttest.Start(t, capListHealth)
	r := registry()
	c := connected(t, d, func(cfg *Config) { cfg.Registry = r })
	type entry = csi.VolumeHealth_VolumeHealthEntry
	pages := map[string]*csi.ControllerListVolumeHealthResponse{
		"": {NextToken: "p2", Entries: []*csi.VolumeHealth{
			{VolumeId: "lost", HealthStatuses: []*entry{
				{Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "DiskGone", Message: "line\nbreak"},
				{Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: strings.Repeat("R", 300)},
			}},
			nil,
			{VolumeId: ""},
		}},
		"p2": {NextToken: "p3"},
		"p3": {Entries: []*csi.VolumeHealth{
			{VolumeId: "slow", HealthStatuses: []*entry{{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "Rebuild"}, nil}},
			{VolumeId: "odd", HealthStatuses: []*entry{{Status: 42, Reason: "MultipathLoss"}}},
			{VolumeId: "fine"},
			{VolumeId: "lost", HealthStatuses: []*entry{{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "Twice"}}},
			{VolumeId: "foreign", HealthStatuses: []*entry{{Status: csi.VolumeHealthErrorType_DEGRADED}}},
		}},
	}
	d.Handle("ControllerListVolumeHealth", func(_ context.Context, req any) (any, error) {
		return pages[req.(*csi.ControllerListVolumeHealthRequest).GetStartingToken()], nil
	})
	got, err := sweep(t, c, "lost", "slow", "odd", "fine", "silent")
	if err != nil {
		t.Fatal(err)
	}
	wantSweep(t, got, volume.Sweep{
		Complete: true, AbnormalOnly: true, Skipped: 2,
		Readings: []volume.Reading{
			reading("fine"),
			reading("lost",
				volume.Condition{Kind: volume.DataLoss, Reason: "DiskGone", Message: "line break"},
				volume.Condition{Kind: volume.Inaccessible, Reason: strings.Repeat("R", 253) + "..."},
				volume.Condition{Kind: volume.Degraded, Reason: "Twice"}),
			reading("odd", volume.Condition{Kind: volume.UnknownCondition, Reason: "MultipathLoss"}),
			reading("slow", volume.Condition{Kind: volume.Degraded, Reason: "Rebuild"}, volume.Condition{Kind: volume.UnknownCondition}),
		},
	})
	if n := counter(t, r, "ha_sidecar_csi_skipped_entries_total", map[string]string{"reason": "empty_id"}); n != 2 {
		t.Errorf("Skipped entries counted = %v, want 2", n)
	}
	if req := d.Requests("ControllerListVolumeHealth")[0].(*csi.ControllerListVolumeHealthRequest); req.GetMaxEntries() != DefaultListEntries {
		t.Errorf("max_entries = %d, want %d", req.GetMaxEntries(), DefaultListEntries)
	}
	all, err := sweep(t, c)
	if err != nil || len(all.Readings) != 5 {
		t.Errorf("A sweep for no volume in particular has %d readings, error %v, want all 5", len(all.Readings), err)
	}
}

// adverse is a page with one adverse volume.
func adverse(id, next string) *csi.ControllerListVolumeHealthResponse {
	return &csi.ControllerListVolumeHealthResponse{NextToken: next, Entries: []*csi.VolumeHealth{{
		VolumeId:       id,
		HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{Status: csi.VolumeHealthErrorType_INACCESSIBLE}},
	}}}
}

func adverseReading(id string) volume.Reading {
	return reading(id, volume.Condition{Kind: volume.Inaccessible})
}

// TestListsThatGoWrong: what each hostile list leaves of a sweep.
func TestListsThatGoWrong(t *testing.T) {
	aborted := status.Error(codes.Aborted, "stale token")
	type page func(token string, max int32, n int) (any, error)
	for _, tc := range []struct {
		name  string
		page  page
		want  volume.Sweep
		err   string
		calls int
	}{
		{"token loop", func(token string, _ int32, _ int) (any, error) {
			return adverse("v"+token, map[string]string{"": "a", "a": "b", "b": "a"}[token]), nil
		}, volume.Sweep{Readings: []volume.Reading{adverseReading("v"), adverseReading("va"), adverseReading("vb")}}, "", 3},
		{"token loop without entries", func(string, int32, int) (any, error) {
			return &csi.ControllerListVolumeHealthResponse{NextToken: "again\n"}, nil
		}, volume.Sweep{}, `repeats the page token "again"`, 2},
		{"endless", func(_ string, _ int32, n int) (any, error) {
			return &csi.ControllerListVolumeHealthResponse{NextToken: fmt.Sprint(n)}, nil
		}, volume.Sweep{}, "does not end after 10000 pages", maxPages},
		{"token becomes invalid once", func(token string, _ int32, n int) (any, error) {
			if n == 2 {
				return nil, aborted
			}
			if token == "" {
				return adverse(fmt.Sprintf("first%d", n), "a"), nil
			}
			return adverse("second", ""), nil
		}, volume.Sweep{Complete: true, Readings: []volume.Reading{adverseReading("first3"), adverseReading("second")}}, "", 4},
		{"token becomes invalid twice", func(token string, _ int32, _ int) (any, error) {
			if token == "" {
				return &csi.ControllerListVolumeHealthResponse{NextToken: "a"}, nil
			}
			return nil, aborted
		}, volume.Sweep{}, "stale token", 4},
		{"aborted at the beginning", func(string, int32, int) (any, error) { return nil, aborted }, volume.Sweep{}, "stale token", 1},
		{"second page fails", func(token string, _ int32, _ int) (any, error) {
			if token == "" {
				return adverse("v", "a"), nil
			}
			return nil, status.Error(codes.Internal, "bad")
		}, volume.Sweep{Readings: []volume.Reading{adverseReading("v")}}, "", 2},
		{"oversize until halved", func(_ string, max int32, _ int) (any, error) {
			if max > DefaultListEntries/2 {
				return csiclienttest.Raw(make([]byte, 5000)), nil
			}
			return adverse("v", ""), nil
		}, volume.Sweep{Complete: true, Readings: []volume.Reading{adverseReading("v")}}, "", 2},
		{"oversize for ever", func(string, int32, int) (any, error) {
			return csiclienttest.Raw(make([]byte, 5000)), nil
		}, volume.Sweep{}, "over the receive limit of 4096 bytes", 5},
		{"typed nil reply", func(string, int32, int) (any, error) {
			return (*csi.ControllerListVolumeHealthResponse)(nil), nil
		}, volume.Sweep{Complete: true}, "", 1},
		{"garbage", func(string, int32, int) (any, error) { return csiclienttest.Raw("\x0a\xff"), nil }, volume.Sweep{}, "unmarshal", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := csiclienttest.Start(t, capListHealth)
			var n atomic.Int32
			d.Handle("ControllerListVolumeHealth", func(_ context.Context, req any) (any, error) {
				r := req.(*csi.ControllerListVolumeHealthRequest)
				return tc.page(r.GetStartingToken(), r.GetMaxEntries(), int(n.Add(1)))
			})
			c := connected(t, d, func(cfg *Config) { cfg.MaxReceiveBytes = 4096 })
			got, err := sweep(t, c)
			tc.want.AbnormalOnly = true
			wantSweep(t, got, tc.want)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("Sweep = %v, want an error with %q", err, tc.err)
			}
			if calls := len(d.Requests("ControllerListVolumeHealth")); calls != tc.calls {
				t.Errorf("%d calls, want %d", calls, tc.calls)
			}
		})
	}
}

// TestEachPageHasItsOwnDeadline: a list may take longer than one call.
func TestEachPageHasItsOwnDeadline(t *testing.T) {
	d := csiclienttest.Start(t, capListHealth)
	seen := make(chan time.Time, 10)
	d.Handle("ControllerListVolumeHealth", func(ctx context.Context, req any) (any, error) {
		at, _ := ctx.Deadline()
		seen <- at
		n := len(d.Requests("ControllerListVolumeHealth"))
		if n == 3 {
			return hang(ctx, req)
		}
		return adverse(fmt.Sprint(n), fmt.Sprint(n)), nil
	})
	c := connected(t, d, func(cfg *Config) { cfg.Timeout = 300 * time.Millisecond })
	got, err := sweep(t, c)
	wantSweep(t, got, volume.Sweep{AbnormalOnly: true, Readings: []volume.Reading{adverseReading("1"), adverseReading("2")}})
	deadlines := []time.Time{<-seen, <-seen, <-seen}
	if err != nil || len(seen) != 0 || !deadlines[1].After(deadlines[0]) || !deadlines[2].After(deadlines[1]) {
		t.Errorf("Sweep = %v with deadlines %v, want a later one for each page", err, deadlines)
	}
}

func TestGetHealth(t *testing.T) {
	d := csiclienttest.Start(t, capGetHealth)
	c := connected(t, d, func(cfg *Config) { cfg.HealthParallelism = 2 })
	var inFlight, most atomic.Int32
	replies := map[string]*csi.ControllerGetVolumeHealthResponse{
		"ok":    {VolumeHealth: &csi.VolumeHealth{VolumeId: "ok"}},
		"bad":   {VolumeHealth: adverse("bad", "").Entries[0]},
		"empty": {},
		"blank": {VolumeHealth: &csi.VolumeHealth{}},
		"mixed": {VolumeHealth: &csi.VolumeHealth{VolumeId: "other"}},
	}
	d.Handle("ControllerGetVolumeHealth", func(_ context.Context, req any) (any, error) {
		now := inFlight.Add(1)
		defer inFlight.Add(-1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		id := req.(*csi.ControllerGetVolumeHealthRequest).GetVolumeId()
		switch id {
		case "gone":
			return nil, status.Error(codes.NotFound, "gone")
		case "fails":
			return nil, status.Error(codes.Internal, "fails")
		}
		return replies[id], nil
	})
	got, err := sweep(t, c, "ok", "bad", "gone")
	if err != nil {
		t.Fatal(err)
	}
	wantSweep(t, got, volume.Sweep{Complete: true, Readings: []volume.Reading{adverseReading("bad"), reading("ok")}})

	got, err = sweep(t, c, "ok", "fails", "empty", "blank", "mixed", "gone")
	if err != nil {
		t.Fatal(err)
	}
	wantSweep(t, got, volume.Sweep{Skipped: 3, Readings: []volume.Reading{reading("ok")}})

	if _, err = sweep(t, c, "fails", "empty"); err == nil || !strings.Contains(err.Error(), "2 of 2 volumes gave no answer") {
		t.Errorf("Sweep without any answer = %v, want it to count them", err)
	}
	if got, err = sweep(t, c); err != nil || !got.Complete {
		t.Errorf("Sweep of no volume = %+v, %v, want it complete", got, err)
	}
	if most.Load() > 2 {
		t.Errorf("%d calls in flight at once, want 2 at most", most.Load())
	}
}

// TestHangingDriverDoesNotCostADeadlinePerVolume: after a few, the sweep ends.
func TestHangingDriverDoesNotCostADeadlinePerVolume(t *testing.T) {
	d := csiclienttest.Start(t, capGetHealth)
	d.Handle("ControllerGetVolumeHealth", hang)
	c := connected(t, d, func(cfg *Config) { cfg.Timeout = 20 * time.Millisecond })
	handles := make([]volume.Handle, 1000)
	for i := range handles {
		handles[i] = volume.Handle(fmt.Sprint(i))
	}
	_, err := sweep(t, c, handles...)
	if err == nil || !strings.Contains(err.Error(), "calls in a row were not answered") {
		t.Errorf("Sweep = %v, want it to give up", err)
	}
	if n := len(d.Requests("ControllerGetVolumeHealth")); n > maxFailuresInRow+2*DefaultHealthParallelism {
		t.Errorf("%d calls, want about %d", n, maxFailuresInRow)
	}
}

func TestSweepEndsWithItsContext(t *testing.T) {
	d := csiclienttest.Start(t, capGetHealth)
	c := connected(t, d)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := c.Sweep(ctx, []volume.Handle{"v"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Sweep = %v, want context.Canceled", err)
	}
	unconnected := newClient(t, Config{Address: d.Path})
	_, err := unconnected.Sweep(testContext(t), nil)
	wantCallError(t, err, codes.Unavailable, volume.OutcomeRetry)
}
