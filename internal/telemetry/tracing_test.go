package telemetry

import (
	"context"
	"net"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeCollector struct {
	collector.UnimplementedTraceServiceServer
	got chan *collector.ExportTraceServiceRequest
}

func (c *fakeCollector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.got <- r
	return &collector.ExportTraceServiceResponse{}, nil
}

func TestTracesReachTheCollector(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &fakeCollector{got: make(chan *collector.ExportTraceServiceRequest, 1)}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	t.Setenv(EnvEndpoint, "http://"+listener.Addr().String())

	provider, shutdown, err := Tracing(t.Context(), "ha-sidecar", "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	_, span := provider.Tracer("test").Start(t.Context(), "failover")
	span.End()
	if err := shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	spans := (<-c.got).GetResourceSpans()
	if len(spans) != 1 || spans[0].GetScopeSpans()[0].GetSpans()[0].GetName() != "failover" {
		t.Errorf("received %v", spans)
	}
	named := map[string]string{}
	for _, a := range spans[0].GetResource().GetAttributes() {
		named[a.GetKey()] = a.GetValue().GetStringValue()
	}
	if named["service.name"] != "ha-sidecar" || named["service.version"] != "v1.2.3" {
		t.Errorf("resource %v", named)
	}
}

func TestWithoutACollectorNothingIsRecorded(t *testing.T) {
	t.Setenv(EnvEndpoint, "")
	t.Setenv(EnvTracesEndpoint, "")
	provider, shutdown, err := Tracing(t.Context(), "ha-sidecar", "v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, span := provider.Tracer("test").Start(t.Context(), "failover"); span.IsRecording() {
		t.Error("records a span that goes nowhere")
	}
	if err := shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// A collector that is away must not hold up a process that has to end.
func TestShutdownEndsWithItsContext(t *testing.T) {
	t.Setenv(EnvTracesEndpoint, "http://127.0.0.1:1")
	provider, shutdown, err := Tracing(t.Context(), "ha-sidecar", "v1")
	if err != nil {
		t.Fatal(err)
	}
	_, span := provider.Tracer("test").Start(t.Context(), "failover")
	span.End()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := shutdown(ctx); err == nil {
		t.Error("nothing was lost, and nobody was there to take it")
	}
}
