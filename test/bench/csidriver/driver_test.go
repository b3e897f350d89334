package csidriver

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// memory is a driver that does not listen.
func memory(latency time.Duration) controller {
	d := &Driver{cfg: Config{Latency: latency}, volumes: map[string]int64{}, changed: make(chan struct{})}
	d.Forget()
	d.ForgetCapacity()
	return controller{driver: d}
}

func ask(name string, size int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}}
}

func TestCalls(t *testing.T) {
	c, ctx := memory(0), t.Context()
	for _, name := range []string{"a", "b", "b", "stray"} {
		if answer, err := c.CreateVolume(ctx, ask(name, 5)); err != nil || answer.GetVolume().GetVolumeId() != VolumeID(name) || answer.GetVolume().GetCapacityBytes() != 5 {
			t.Errorf("%v, %v", answer, err)
		}
	}
	if _, err := c.CreateVolume(ctx, ask("b", 6)); status.Code(err) != codes.AlreadyExists {
		t.Errorf("a volume grew: %v", err)
	}
	for range 2 {
		if _, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: VolumeID("a")}); err != nil {
			t.Error(err)
		}
	}
	creates, deletes := c.driver.Calls([]string{"a", "b"})
	if creates != (Calls{Total: 5, Least: 1, Most: 3}) || deletes != (Calls{Total: 2, Least: 0, Most: 2}) {
		t.Errorf("creates %+v, deletes %+v", creates, deletes)
	}
	c.driver.Forget()
	if creates, _ := c.driver.Calls([]string{"a"}); creates != (Calls{}) {
		t.Errorf("%+v after all was forgotten", creates)
	}
	for _, err := range []error{
		second(c.CreateVolume(ctx, ask("", 5))),
		second(c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{})),
	} {
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v, want InvalidArgument", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, begun := memory(time.Second), time.Now()
		if _, err := c.CreateVolume(t.Context(), ask("a", 5)); err != nil || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if _, err := c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: VolumeID("a")}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%v, want DeadlineExceeded", err)
		}
		if err := c.driver.AwaitEmpty(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who gave up has deleted it: %v", err)
		}
		go func() { _, _ = c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: VolumeID("a")}) }()
		if err := c.driver.AwaitEmpty(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestServes: the driver answers at its socket what a sidecar asks at its start.
func TestServes(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	d, err := Start(t.Context(), Config{Name: "d.example.com", Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != "d.example.com" {
		t.Errorf("%v, %v", info, err)
	}
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{})
	if err != nil || len(plugin.GetCapabilities()) != 1 {
		t.Errorf("%v, %v", plugin, err)
	}
	can, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil || len(can.GetCapabilities()) != 2 {
		t.Errorf("%v, %v", can, err)
	}
	if err := errors.Join(conn.Close(), d.Stop()); err != nil {
		t.Error(err)
	}
	for _, bad := range []Config{{Socket: socket}, {Name: "d"}, {Name: "d", Socket: socket, Latency: -1}} {
		if _, err := Start(t.Context(), bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
