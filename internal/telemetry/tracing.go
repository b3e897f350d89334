// Package telemetry sends traces to an OpenTelemetry collector.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/klog/v2"
)

// The variables that name a collector, from OpenTelemetry's specification of
// the OTLP exporter. It reads their siblings (headers, certificates) too.
const (
	EnvEndpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	EnvTracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
)

// Tracing returns a provider that exports by OTLP over gRPC in the background
// to the collector that the environment names, and its shutdown, which sends
// what is left until its context ends. Without a collector nothing is recorded.
// A collector that does not answer costs traces and nothing else.
func Tracing(ctx context.Context, service, version string) (trace.TracerProvider, func(context.Context) error, error) {
	if os.Getenv(EnvEndpoint) == "" && os.Getenv(EnvTracesEndpoint) == "" {
		return noop.NewTracerProvider(), func(context.Context) error { return nil }, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("preparing the export of traces to %s: %w", endpoint(), err)
	}
	// The attributes' names are those of OpenTelemetry's semantic conventions.
	attributes, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", service), attribute.String("service.version", version),
	), resource.WithFromEnv())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("reading the OTEL_ variables: %w", err), exporter.Shutdown(ctx))
	}
	klog.FromContext(ctx).Info("Exports traces", "endpoint", endpoint())
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(attributes))
	return provider, func(ctx context.Context) error {
		// The provider gives up with ctx before it closes what it exports by.
		return errors.Join(provider.Shutdown(ctx), exporter.Shutdown(ctx))
	}, nil
}

func endpoint() string {
	if e := os.Getenv(EnvTracesEndpoint); e != "" {
		return e
	}
	return os.Getenv(EnvEndpoint)
}
