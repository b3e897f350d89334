package csiclient

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	csimetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// TestPublishRepliesOnTheWire: what a driver's answer leaves behind, told from
// the bytes that came.
func TestPublishRepliesOnTheWire(t *testing.T) {
	d := csiclienttest.Start(t)
	r := registry()
	c := connected(t, d, func(cfg *Config) {
		cfg.MaxReceiveBytes, cfg.Timeout, cfg.Registry = 4096, 200*time.Millisecond, r
	})
	reply := func(v any, err error) csiclienttest.Handler {
		return func(context.Context, any) (any, error) { return v, err }
	}
	mapEntry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "k")
	mapEntry = protowire.AppendString(protowire.AppendTag(mapEntry, 2, protowire.BytesType), "\xff\xfe")
	invalid := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), mapEntry)
	for _, tc := range []struct {
		name    string
		handler csiclienttest.Handler
		code    codes.Code
		outcome volume.Outcome
		text    string
	}{
		{"refused", reply(nil, status.Error(codes.InvalidArgument, "no")), codes.InvalidArgument, volume.OutcomeFinal, "no"},
		{"aborted", reply(nil, status.Error(codes.Aborted, "busy")), codes.Aborted, volume.OutcomeUncertain, "busy"},
		{"plain error", reply(nil, errors.New("oops")), codes.Unknown, volume.OutcomeUncertain, "oops"},
		{"unknown code", reply(nil, status.Error(codes.Code(77), "what")), codes.Code(77), volume.OutcomeUncertain, "what"},
		{"garbage", reply(csiclienttest.Raw("\x0a\xff"), nil), codes.Internal, volume.OutcomeUncertain, "unmarshal"},
		{"invalid UTF-8", reply(csiclienttest.Raw(invalid), nil), codes.Internal, volume.OutcomeUncertain, "UTF-8"},
		{"oversize", reply(csiclienttest.Raw(make([]byte, 5000)), nil), codes.ResourceExhausted, volume.OutcomeUncertain, "receive limit of 4096 bytes; raise --csi-max-receive-bytes"},
		{"server's own limit", reply(nil, status.Error(codes.ResourceExhausted, "grpc: received message larger than max (9 vs. 8)")), codes.ResourceExhausted, volume.OutcomeUncertain, "9 vs. 8"},
		{"hang", hang, codes.DeadlineExceeded, volume.OutcomeUncertain, "no answer within 200ms"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d.Handle("ControllerPublishVolume", tc.handler)
			call := wantCallError(t, publish(testContext(t), c), tc.code, tc.outcome)
			if !strings.Contains(call.Error(), tc.text) || !call.Sent || call.Why == "" {
				t.Errorf("%+v, want it sent, with a reason, and to say %q", call, tc.text)
			}
		})
	}
	// No message at all is an empty one on the wire, which is a fine answer.
	d.Handle("ControllerPublishVolume", reply(nil, nil))
	if err := publish(testContext(t), c); err != nil {
		t.Errorf("A nil reply: %v, want it taken for an empty one", err)
	}
	if got := counter(t, r, "ha_sidecar_csi_malformed_replies_total", map[string]string{"kind": "oversize"}); got != 1 {
		t.Errorf("Oversize replies counted = %v, want 1", got)
	}
	if got := counter(t, r, "ha_sidecar_csi_call_outcomes_total", map[string]string{"method": "ControllerPublishVolume", "outcome": "final"}); got != 1 {
		t.Errorf("Final outcomes counted = %v, want 1", got)
	}
}

func TestUnpublish(t *testing.T) {
	d := csiclienttest.Start(t)
	c := connected(t, d)
	d.Handle("ControllerUnpublishVolume", func(context.Context, any) (any, error) { return &csi.ControllerUnpublishVolumeResponse{}, nil })
	req := &csi.ControllerUnpublishVolumeRequest{VolumeId: "v", NodeId: "n"}
	if _, err := c.ControllerUnpublish(testContext(t), req); err != nil {
		t.Fatal(err)
	}
	d.Handle("ControllerUnpublishVolume", func(context.Context, any) (any, error) { return nil, status.Error(codes.NotFound, "no volume") })
	_, err := c.ControllerUnpublish(testContext(t), req)
	wantCallError(t, err, codes.NotFound, volume.OutcomeUncertain)
}

// TestCallersDeadlineWins over the longer one of the configuration.
func TestCallersDeadlineWins(t *testing.T) {
	d := csiclienttest.Start(t)
	d.Handle("ControllerPublishVolume", hang)
	c := connected(t, d)
	ctx, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
	defer cancel()
	err := publish(ctx, c)
	wantCallError(t, err, codes.DeadlineExceeded, volume.OutcomeUncertain)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("errors.Is(%v, DeadlineExceeded) = false, want true", err)
	}
	cancelled, cancel := context.WithCancel(testContext(t))
	cancel()
	err = publish(cancelled, c)
	if !errors.Is(err, context.Canceled) || volume.OutcomeOf(err) != volume.OutcomeRetry {
		t.Errorf("A call that was cancelled before it began: %v with outcome %s, want retry", err, volume.OutcomeOf(err))
	}
}

func TestOperationsAreRecorded(t *testing.T) {
	d := csiclienttest.Start(t)
	d.Handle("ControllerPublishVolume", func(context.Context, any) (any, error) { return nil, status.Error(codes.Aborted, "") })
	manager := csimetrics.NewCSIMetricsManagerForSidecar("")
	c := connected(t, d, func(cfg *Config) { cfg.Metrics = manager })
	wantCallError(t, publish(testContext(t), c), codes.Aborted, volume.OutcomeUncertain)
	vec, err := testutil.GetHistogramVecFromGatherer(manager.GetRegistry(), "csi_sidecar_operations_seconds", map[string]string{
		"driver_name": csiclienttest.Name, "method_name": csi.Controller_ControllerPublishVolume_FullMethodName, "grpc_status_code": "Aborted",
	})
	if err != nil || vec.GetAggregatedSampleCount() != 1 {
		t.Errorf("Samples = %v, error %v, want one under the driver's name", vec, err)
	}
}

// TestMigratedIsALabelOfTheCallsMetric, where the manager has it: of the volume
// that a call is about, and "false" for calls about none.
func TestMigratedIsALabelOfTheCallsMetric(t *testing.T) {
	d := csiclienttest.Start(t)
	d.Handle("CreateVolume", func(context.Context, any) (any, error) { return &csi.CreateVolumeResponse{}, nil })
	d.Handle("DeleteVolume", func(context.Context, any) (any, error) { return nil, status.Error(codes.Internal, "") })
	manager := csimetrics.NewCSIMetricsManagerWithOptions("", csimetrics.WithMigration())
	c := connected(t, d, func(cfg *Config) { cfg.Metrics = manager })
	for _, migrated := range []bool{true, true, false} {
		ctx := volume.WithMigrated(testContext(t), migrated)
		if _, err := c.CreateVolume(ctx, &csi.CreateVolumeRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.DeleteVolume(volume.WithMigrated(testContext(t), true), &csi.DeleteVolumeRequest{}); err == nil {
		t.Fatal("no error")
	}
	for _, want := range []struct {
		method, code, migrated string
		samples                uint64
	}{
		{csi.Controller_CreateVolume_FullMethodName, "OK", "true", 2},
		{csi.Controller_CreateVolume_FullMethodName, "OK", "false", 1},
		{csi.Controller_DeleteVolume_FullMethodName, "Internal", "true", 1},
		{csi.Identity_GetPluginInfo_FullMethodName, "OK", "false", 1},
	} {
		vec, err := testutil.GetHistogramVecFromGatherer(manager.GetRegistry(), "csi_sidecar_operations_seconds", map[string]string{
			"method_name": want.method, "grpc_status_code": want.code, "migrated": want.migrated,
		})
		if err != nil || vec.GetAggregatedSampleCount() != want.samples {
			t.Errorf("%+v: samples %v, error %v", want, vec, err)
		}
	}
}

// TestSecretsNeverReachALog, at the highest verbosity, with a driver that
// quotes them in its error and in its reply.
func TestSecretsNeverReachALog(t *testing.T) {
	const canary = "c4n4ry-s3cr3t"
	d := csiclienttest.Start(t)
	c := connected(t, d)
	logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(10)))
	ctx := klog.NewContext(testContext(t), logger)
	req := &csi.ControllerPublishVolumeRequest{
		VolumeId: "vol-77", NodeId: canary,
		Secrets:       map[string]string{"password": canary},
		VolumeContext: map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": canary + "-token"},
	}
	d.Handle("ControllerPublishVolume", func(context.Context, any) (any, error) {
		return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{canary: canary + "-session"}}, nil
	})
	if _, err := c.ControllerPublish(ctx, req); err != nil {
		t.Fatal(err)
	}
	d.Handle("ControllerPublishVolume", func(context.Context, any) (any, error) {
		return nil, status.Errorf(codes.Internal, "login with %q and\n%s failed", canary, strings.Repeat(canary, 1000))
	})
	_, err := c.ControllerPublish(ctx, req)
	text := logger.GetSink().(ktesting.Underlier).GetBuffer().String() + err.Error() + status.Convert(err).Message()
	if strings.Contains(text, canary) {
		t.Errorf("The canary is in:\n%s", text)
	}
	if !strings.Contains(text, "vol-77") {
		t.Errorf("The log does not tell of the call:\n%s", text)
	}
}

// marshalSpy tells whether it was rendered.
type marshalSpy struct{ rendered *int }

func (s marshalSpy) MarshalJSON() ([]byte, error) {
	*s.rendered++
	return []byte(`"spy"`), nil
}

// TestReplyIsRenderedOnlyForTheLog: below the level nothing is made of it.
func TestReplyIsRenderedOnlyForTheLog(t *testing.T) {
	for verbosity, want := range map[int]int{0: 0, logLevel - 1: 0, logLevel: 2} {
		var rendered int
		logger := ktesting.NewLogger(ktesting.NopTL{}, ktesting.NewConfig(ktesting.Verbosity(verbosity)))
		c := call{method: "/x/Y", req: marshalSpy{&rendered}, reply: marshalSpy{&rendered}}
		c.log(logger)
		if rendered != want {
			t.Errorf("At verbosity %d, %d messages were rendered, want %d", verbosity, rendered, want)
		}
	}
	reply := &csi.ListVolumesResponse{Entries: make([]*csi.ListVolumesResponse_Entry, 1000)}
	quiet := call{method: "/x/Y", reply: reply}
	logger := logr.Discard()
	if got := testing.AllocsPerRun(100, func() { quiet.log(logger) }); got != 0 {
		t.Errorf("A call that is not logged allocates %v times, want 0", got)
	}
}
