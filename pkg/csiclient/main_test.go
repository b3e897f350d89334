package csiclient

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient/csiclienttest"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; none of them is meant to use it up.
const patience = time.Minute

// testContext ends with the test, carries a logger that goes to it, and has a
// deadline so that nothing hangs.
func testContext(t *testing.T) context.Context {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(2)))
	ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logger), patience)
	t.Cleanup(cancel)
	return ctx
}

// newClient makes a client that is closed with the test.
func newClient(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return c
}

// connected makes a client that is connected to the driver.
func connected(t *testing.T, d *csiclienttest.Driver, change ...func(*Config)) *Client {
	t.Helper()
	cfg := Config{Address: d.Path}
	for _, f := range change {
		f(&cfg)
	}
	c := newClient(t, cfg)
	if err := c.Connect(testContext(t)); err != nil {
		t.Fatalf("Connect: %v", err)
	}
	return c
}

// running runs the client in the background until the test ends.
func running(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// await blocks until the client's state satisfies a condition.
func await(t *testing.T, c *Client, what string, condition func() bool) {
	t.Helper()
	ctx := testContext(t)
	for {
		changed := c.Changed()
		if condition() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("Waiting until %s: %v; Ready: %v", what, ctx.Err(), c.Ready())
		}
	}
}

func registry() metrics.KubeRegistry { return metrics.NewKubeRegistry() }

// counter reads a counter or gauge of a registry, 0 if it was never set.
func counter(t *testing.T, r metrics.KubeRegistry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatalf("Gathering metrics: %v", err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if testutil.LabelsMatch(m, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

// wantCallError checks the code and the outcome of a failed call.
func wantCallError(t *testing.T, err error, code codes.Code, outcome volume.Outcome) *CallError {
	t.Helper()
	var call *CallError
	if !errors.As(err, &call) {
		t.Fatalf("The error is %T (%v), want *CallError", err, err)
	}
	if call.Code != code || volume.OutcomeOf(err) != outcome {
		t.Fatalf("The error is %s with outcome %s (%v), want %s with %s", call.Code, volume.OutcomeOf(err), err, code, outcome)
	}
	return call
}
