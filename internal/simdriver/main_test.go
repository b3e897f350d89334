package simdriver

import (
	"context"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// asCommand in the environment makes the test binary the driver's command, so
// that tests can kill it.
const asCommand = "SIMDRIVER_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		// It ends with the test process, however that ends.
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
		code := Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
		os.Exit(code)
	}
	goleak.VerifyTestMain(m,
		// Ginkgo waits for signals as long as the process lives.
		goleak.IgnoreTopFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

// command is the driver's command as a process of its own. Whoever uses files of
// a FUSE filesystem must not serve it: a process that is killed waits for its
// file operations to end, and would wait for itself.
func command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	// The race detector otherwise waits a second before a process may end.
	cmd.Env = append(os.Environ(), asCommand+"=1", "GORACE=atexit_sleep_ms=0")
	if _, err := cmd.StdinPipe(); err != nil { // open until cmd.Wait
		t.Fatal(err)
	}
	return cmd
}
