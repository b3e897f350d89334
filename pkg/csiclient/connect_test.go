package csiclient

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestConnect(t *testing.T) {
	d := csiclienttest.Start(t, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, VolumeCondition, 99)
	c := newClient(t, Config{Address: "unix://" + d.Path})
	if c.Ready() == nil {
		t.Error("Ready before Connect is nil, want an error")
	}
	if err := c.Connect(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if c.Ready() != nil || c.Name() != csiclienttest.Name {
		t.Errorf("Ready = %v, Name = %q, want ready and %q", c.Ready(), c.Name(), csiclienttest.Name)
	}
	caps := c.Capabilities()
	if !caps.Has(99) || !caps.Has(VolumeCondition) || caps.Has(csi.ControllerServiceCapability_RPC_LIST_VOLUMES) || !caps.ControllerService() {
		t.Errorf("Capabilities = %s, want exactly what the driver said", caps)
	}
	if got, want := caps.String(), "PUBLISH_UNPUBLISH_VOLUME,VOLUME_CONDITION,99"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}

// TestConnectSaysWhatIsWrong: each way in which there is no usable driver ends
// in one line with the matter and the remedy.
func TestConnectSaysWhatIsWrong(t *testing.T) {
	file := csiclienttest.SocketPath(t)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	orphan := csiclienttest.SocketPath(t)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: orphan})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	_ = listener.Close()
	driver := func(change func(*csiclienttest.Driver)) string {
		d := csiclienttest.New(t)
		change(d)
		d.Start()
		return d.Path
	}
	named := func(name string) string {
		return driver(func(d *csiclienttest.Driver) { d.SetName(name) })
	}
	failing := func(method string, err error) string {
		return driver(func(d *csiclienttest.Driver) {
			d.Handle(method, func(context.Context, any) (any, error) { return nil, err })
		})
	}
	for _, tc := range []struct {
		name, address, want string
		permanent           bool
	}{
		{"missing", csiclienttest.SocketPath(t), "there is no socket at", false},
		{"file", file, "is a regular file and not a unix socket", true},
		{"directory", t.TempDir(), "is a directory and not a unix socket", true},
		{"device", "/dev/null", "is a special file", true},
		{"path through a file", file + "/csi.sock", "cannot be looked at", false},
		{"orphan", orphan, "nobody listens on", false},
		{"mute", csiclienttest.Mute(t, ""), "accepts connections but does not answer", false},
		{"not gRPC", csiclienttest.Mute(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), "does not answer as a gRPC server", false},
		{"hangs", driver(func(d *csiclienttest.Driver) { d.Handle("Probe", hang) }), "does not answer Probe", false},
		{"probe fails", failing("Probe", status.Error(codes.FailedPrecondition, "license")), "fails Probe", false},
		{"no CSI", failing("Probe", status.Error(codes.Unimplemented, "")), "does not have the CSI call Probe", false},
		{"no info", failing("GetPluginInfo", status.Error(codes.Internal, "")), "does not say who it is", false},
		{"no capabilities", failing("GetPluginCapabilities", status.Error(codes.Internal, "")), "does not say who it is", false},
		{"no controller capabilities", failing("ControllerGetCapabilities", status.Error(codes.Internal, "")), "does not say who it is", false},
		{"no controller service", driver(func(d *csiclienttest.Driver) { d.SetServices() }), "has no CONTROLLER_SERVICE", true},
		{"no name", named(""), "the name is empty", true},
		{"long name", named(strings.Repeat("a", 64)), "64 bytes, and 63 are allowed", true},
		{"path in name", named("../../etc"), "no domain name", true},
		{"name ends with a dash", named("a.b-"), "no domain name", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			if !tc.permanent {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
			}
			c := newClient(t, Config{Address: tc.address, ConnectTimeout: time.Second})
			err := c.Connect(ctx)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("Connect = %v, want one line with %q", err, tc.want)
			}
			if IsPermanent(err) != tc.permanent {
				t.Errorf("IsPermanent(%v) = %t, want %t", err, IsPermanent(err), tc.permanent)
			}
			if !tc.permanent && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("The error %v hides that the wait ended", err)
			}
			if ready := c.Ready(); ready == nil || !strings.Contains(ready.Error(), tc.want) {
				t.Errorf("Ready = %v, want it to say %q", ready, tc.want)
			}
			_, err = c.ControllerPublish(ctx, &csi.ControllerPublishVolumeRequest{})
			wantCallError(t, err, codes.Unavailable, volume.OutcomeRetry)
		})
	}
}

// hang answers only when the caller gives up.
func hang(ctx context.Context, _ any) (any, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestConnectWaitsUntilReady(t *testing.T) {
	d := csiclienttest.New(t)
	d.Handle("Probe", func(context.Context, any) (any, error) {
		if len(d.Requests("Probe")) < 3 {
			return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
		}
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
	})
	d.Start()
	connected(t, d)
	if got := len(d.Requests("Probe")); got != 3 {
		t.Errorf("Probed %d times, want 3", got)
	}
}

func TestConnectSurvivesNilReplies(t *testing.T) {
	d := csiclienttest.New(t)
	d.Handle("Probe", func(context.Context, any) (any, error) { return (*csi.ProbeResponse)(nil), nil })
	d.Handle("ControllerGetCapabilities", func(context.Context, any) (any, error) {
		return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{nil, {}}}, nil
	})
	d.Start()
	if got := connected(t, d).Capabilities().String(); got != "" {
		t.Errorf("Capabilities = %q, want none", got)
	}
}

// TestWaitIsLoggedSparingly: the first time at once, then every 10 s, however
// often the socket is tried.
func TestWaitIsLoggedSparingly(t *testing.T) {
	path := csiclienttest.SocketPath(t)
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), 25*time.Second)
		defer cancel()
		c, err := New(Config{Address: path})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Connect(ctx); err == nil {
			t.Fatal("Connect succeeded without a driver")
		}
		text := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if got := strings.Count(text, "Waiting for the driver"); got != 3 {
			t.Errorf("The wait of 25 s was logged %d times, want 3:\n%s", got, text)
		}
	})
}
