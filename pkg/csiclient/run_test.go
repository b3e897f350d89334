package csiclient

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func publish(ctx context.Context, c *Client) error {
	_, err := c.ControllerPublish(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: "v", NodeId: "n"})
	return err
}

func acceptPublish(context.Context, any) (any, error) {
	return &csi.ControllerPublishVolumeResponse{}, nil
}

// TestSocketVanishesAndComesBack, with other capabilities: not ready and no
// call meanwhile, then all as before with what the driver says now.
func TestSocketVanishesAndComesBack(t *testing.T) {
	d := csiclienttest.Start(t, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	d.Handle("ControllerPublishVolume", acceptPublish)
	r := registry()
	c := connected(t, d, func(cfg *Config) { cfg.Registry = r })
	running(t, c)
	ctx := testContext(t)
	if err := publish(ctx, c); err != nil {
		t.Fatal(err)
	}

	d.Stop()
	await(t, c, "the missing socket is noticed", func() bool {
		return c.Ready() != nil && strings.Contains(c.Ready().Error(), "there is no socket")
	})
	if call := wantCallError(t, publish(ctx, c), codes.Unavailable, volume.OutcomeRetry); call.Sent {
		t.Error("A call without a connection claims to have been sent")
	}
	if got := counter(t, r, "ha_sidecar_csi_connected", nil); got != 0 {
		t.Errorf("ha_sidecar_csi_connected = %v while the driver is away, want 0", got)
	}
	if c.Name() != csiclienttest.Name || c.HealthDialect() != DialectV113 {
		t.Errorf("Name %q and dialect %q while the driver is away, want the last known", c.Name(), c.HealthDialect())
	}

	d.SetCapabilities(VolumeCondition, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	d.Start()
	start := time.Now()
	await(t, c, "the driver is back", func() bool { return c.Ready() == nil })
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("Reconnecting took %s, want about a second at most", took)
	}
	if err := publish(ctx, c); err != nil {
		t.Errorf("Publish after the reconnect: %v", err)
	}
	if c.HealthDialect() != DialectLegacy {
		t.Errorf("Dialect = %s after the capabilities changed, want legacy", c.HealthDialect())
	}
	if got := counter(t, r, "ha_sidecar_csi_reconnects_total", nil); got != 1 {
		t.Errorf("ha_sidecar_csi_reconnects_total = %v, want 1", got)
	}
}

// TestAnotherDriverIsNeverCalled: one with another name takes the socket over,
// between two calls and without a pause.
func TestAnotherDriverIsNeverCalled(t *testing.T) {
	d := csiclienttest.Start(t)
	d.Handle("ControllerPublishVolume", acceptPublish)
	c := connected(t, d)
	running(t, c)
	ctx := testContext(t)

	d.Stop()
	d.SetName("other.csi.example.com")
	d.Start()
	const want = "changed its name from fake.csi.example.com to other.csi.example.com"
	for {
		changed := c.Changed()
		err := publish(ctx, c)
		if err == nil {
			t.Fatal("A call got through to another driver")
		}
		if strings.Contains(err.Error(), want) {
			wantCallError(t, err, codes.Unavailable, volume.OutcomeRetry)
			break
		}
		<-changed
	}
	if ready := c.Ready(); ready == nil || !strings.Contains(ready.Error(), want) {
		t.Errorf("Ready = %v, want it to say %q", ready, want)
	}
	if got := len(d.Requests("ControllerPublishVolume")); got != 0 {
		t.Errorf("The other driver was called %d times, want 0", got)
	}
	if c.Name() != csiclienttest.Name {
		t.Errorf("Name = %q, want the first one", c.Name())
	}

	d.Stop()
	d.SetName(csiclienttest.Name)
	d.Start()
	await(t, c, "the first driver is back", func() bool { return c.Ready() == nil })
	if err := publish(ctx, c); err != nil {
		t.Errorf("Publish to the first driver: %v", err)
	}
}

func TestDriverComesBackWithoutControllerService(t *testing.T) {
	d := csiclienttest.Start(t)
	c := connected(t, d)
	running(t, c)
	d.Stop()
	d.SetServices()
	d.Start()
	await(t, c, "the missing service is told", func() bool {
		return c.Ready() != nil && strings.Contains(c.Ready().Error(), "CONTROLLER_SERVICE")
	})
	d.SetServices(csi.PluginCapability_Service_CONTROLLER_SERVICE)
	await(t, c, "the service is back", func() bool { return c.Ready() == nil })
}

// TestCallInFlightOutlivesShutdown: a driver that stops in good order answers
// what it has begun, and the answer is heard.
func TestCallInFlightOutlivesShutdown(t *testing.T) {
	d := csiclienttest.Start(t)
	begun, finish := make(chan struct{}), make(chan struct{})
	d.Handle("ControllerPublishVolume", func(context.Context, any) (any, error) {
		close(begun)
		<-finish
		return &csi.ControllerPublishVolumeResponse{}, nil
	})
	c := connected(t, d)
	running(t, c)
	result := make(chan error, 1)
	ctx := testContext(t)
	go func() { result <- publish(ctx, c) }()
	<-begun
	stopped := make(chan struct{})
	go func() { defer close(stopped); d.Shutdown() }()
	await(t, c, "the shutdown is noticed", func() bool { return c.Ready() != nil })
	close(finish)
	if err := <-result; err != nil {
		t.Errorf("The call in flight: %v, want its answer", err)
	}
	<-stopped
}

// TestConnectionCutInFlight: the request was with the driver, so what became of
// it is not known.
func TestConnectionCutInFlight(t *testing.T) {
	d := csiclienttest.Start(t)
	begun := make(chan struct{})
	d.Handle("ControllerPublishVolume", func(ctx context.Context, _ any) (any, error) {
		close(begun)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	c := connected(t, d)
	result := make(chan error, 1)
	ctx := testContext(t)
	go func() { result <- publish(ctx, c) }()
	<-begun
	d.Stop()
	if call := wantCallError(t, <-result, codes.Unavailable, volume.OutcomeUncertain); !call.Sent {
		t.Error("A call that the driver had claims not to have been sent")
	}
	// The session is over, and nobody opens another: nothing is sent.
	if call := wantCallError(t, publish(ctx, c), codes.Unavailable, volume.OutcomeRetry); call.Sent {
		t.Error("A call without a connection claims to have been sent")
	}
}

func TestProbeFailsWhileConnected(t *testing.T) {
	d := csiclienttest.Start(t)
	d.Handle("ControllerPublishVolume", acceptPublish)
	c := connected(t, d, func(cfg *Config) { cfg.ProbeInterval = 20 * time.Millisecond })
	running(t, c)
	d.Handle("Probe", func(context.Context, any) (any, error) {
		return nil, status.Error(codes.FailedPrecondition, "backend away")
	})
	await(t, c, "the failed probe shows", func() bool {
		return c.Ready() != nil && strings.Contains(c.Ready().Error(), "backend away")
	})
	if err := publish(testContext(t), c); err != nil {
		t.Errorf("A call to a driver that is connected but not ready: %v, want it to be tried", err)
	}
	d.Handle("Probe", nil)
	await(t, c, "the probe succeeds again", func() bool { return c.Ready() == nil })
}

// TestHungDriverIsLeftForItsSuccessor: the connection to a process that hangs
// never ends by itself, though another process listens at the path by now.
func TestHungDriverIsLeftForItsSuccessor(t *testing.T) {
	hung := csiclienttest.Start(t)
	c := connected(t, hung, func(cfg *Config) {
		cfg.ProbeInterval = 20 * time.Millisecond
		cfg.ConnectTimeout = 100 * time.Millisecond
	})
	running(t, c)
	hung.Handle("Probe", hang)
	await(t, c, "the hanging driver shows", func() bool {
		return c.Ready() != nil && strings.Contains(c.Ready().Error(), "does not answer Probe")
	})
	next := csiclienttest.Start(t)
	next.Handle("ControllerPublishVolume", acceptPublish)
	if err := os.Rename(next.Path, hung.Path); err != nil {
		t.Fatal(err)
	}
	await(t, c, "the successor is connected", func() bool { return c.Ready() == nil })
	if err := publish(testContext(t), c); err != nil {
		t.Errorf("Publish to the successor: %v", err)
	}
}

func TestClose(t *testing.T) {
	d := csiclienttest.Start(t)
	c := connected(t, d)
	done := make(chan error, 1)
	ctx := testContext(t)
	go func() { done <- c.Run(ctx) }()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Run after Close: %v, want nil", err)
	}
	wantCallError(t, publish(ctx, c), codes.Unavailable, volume.OutcomeRetry)
	if err := c.Connect(ctx); err == nil {
		t.Error("Connect after Close succeeded, want an error")
	}
	if err := c.Close(); err != nil {
		t.Errorf("The second Close: %v, want nil", err)
	}
}
