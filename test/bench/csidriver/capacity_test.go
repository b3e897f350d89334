package csidriver

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const segmentKey = "d.example.com/segment"

func askRoom(segment, class string) *csi.GetCapacityRequest {
	return &csi.GetCapacityRequest{
		AccessibleTopology: &csi.Topology{Segments: map[string]string{segmentKey: segment}},
		Parameters:         map[string]string{ClassParameter: class},
	}
}

func TestGetCapacityCountsWhatItHasTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, begun := memory(0), time.Now()
		c.driver.cfg.Capacity = &Capacity{Key: segmentKey, Latency: time.Second}
		for range 2 {
			if answer, err := c.GetCapacity(t.Context(), askRoom("a", "x")); err != nil || answer.GetAvailableCapacity() != available {
				t.Errorf("%v, %v", answer, err)
			}
		}
		if took := time.Since(begun); took != 2*time.Second {
			t.Errorf("two calls took %v", took)
		}
		for _, bad := range []*csi.GetCapacityRequest{askRoom("", "x"), askRoom("a", ""), {}} {
			if _, err := c.GetCapacity(t.Context(), bad); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%v: %v, want InvalidArgument", bad, err)
			}
		}
		// One that is under way when the driver falls silent has told nothing.
		time.AfterFunc(time.Second/2, c.driver.SilenceCapacity)
		if _, err := c.GetCapacity(t.Context(), askRoom("b", "x")); status.Code(err) != codes.Unavailable {
			t.Errorf("%v, want Unavailable", err)
		}
		asked, told := c.driver.CapacityCalls()
		if diff := cmp.Diff(map[Item]int{{"a", "x"}: 2}, told); diff != "" || asked != 3 {
			t.Errorf("%d calls, want 3; told: want -, got +\n%s", asked, diff)
		}
		c.driver.ForgetCapacity()
		if asked, told := c.driver.CapacityCalls(); asked != 0 || len(told) != 0 {
			t.Errorf("%d calls, %v after all was forgotten", asked, told)
		}
		if _, err := c.GetCapacity(t.Context(), askRoom("b", "x")); err != nil {
			t.Errorf("silent for ever: %v", err)
		}
	})
}

func TestGetCapacityFailsThePartItIsTold(t *testing.T) {
	for failing, within := range map[float64][2]int{0: {0, 0}, 1: {1000, 1000}, 0.5: {350, 650}} {
		c, failed := memory(0), 0
		c.driver.cfg.Capacity = &Capacity{Key: segmentKey, Failing: failing}
		for range 1000 {
			if _, err := c.GetCapacity(t.Context(), askRoom("a", "x")); err != nil {
				failed++
			}
		}
		if failed < within[0] || failed > within[1] {
			t.Errorf("%d of 1000 fail with %g", failed, failing)
		}
	}
}

// TestCapacityOnDemand: only a driver that is told to has topology and capacity.
func TestCapacityOnDemand(t *testing.T) {
	for _, capacity := range []*Capacity{nil, {Key: segmentKey}} {
		c := memory(0)
		c.driver.cfg.Capacity = capacity
		more := 0
		if capacity != nil {
			more = 1
		}
		plugin, err := identity{driver: c.driver}.GetPluginCapabilities(t.Context(), nil)
		if err != nil || len(plugin.GetCapabilities()) != 1+more {
			t.Errorf("%v, %v", plugin, err)
		}
		can, err := c.ControllerGetCapabilities(t.Context(), nil)
		if err != nil || len(can.GetCapabilities()) != 2+more {
			t.Errorf("%v, %v", can, err)
		}
		if _, err := c.GetCapacity(t.Context(), askRoom("a", "x")); (err == nil) != (capacity != nil) {
			t.Errorf("with %v: %v", capacity, err)
		}
	}
	for _, bad := range []Capacity{{}, {Key: "k", Latency: -1}, {Key: "k", Failing: -0.1}, {Key: "k", Failing: math.Nextafter(1, 2)}} {
		if _, err := Start(t.Context(), Config{Name: "d", Socket: t.TempDir() + "/s", Capacity: &bad}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
