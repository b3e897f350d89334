package rig

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// RunTests is what a TestMain does whose tests share a world: it runs them, ends
// the world and looks for goroutines that are left. begin gets ctx, which a signal
// ends too; end is told whether all tests passed. It returns the exit code.
func RunTests(ctx context.Context, m *testing.M, begin func(context.Context), end func(passed bool) error) (code int) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	begin(ctx)
	code = m.Run()
	if err := end(code == 0); err != nil {
		fmt.Fprintf(os.Stderr, "--- FAIL: the shared world, after all tests: %v\n", err)
		code = 1
	}
	stop()
	http.DefaultClient.CloseIdleConnections()
	if code != 0 {
		return code // a failed test may have left anything behind
	}
	// The flusher of the logs lives as long as the process.
	if err := goleak.Find(goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1")); err != nil {
		fmt.Fprintf(os.Stderr, "--- FAIL: after all tests: %v\n", err)
		return 1
	}
	return 0
}
