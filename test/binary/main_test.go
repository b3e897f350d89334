// Package binary tests bin/ha-sidecar as a process: what it says and how it ends
// on bad input, when it is told to stop, when it loses its lease and when its
// driver goes away. All share one control plane, one driver and two replicas.
package binary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	startBound = 2 * time.Minute
	testBound  = time.Minute

	leaseDuration = 4 * time.Second
	renewDeadline = 3 * time.Second
)

func TestMain(m *testing.M) {
	os.Exit(rig.RunTests(context.Background(), m, func(ctx context.Context) { common.ctx = ctx }, common.close))
}

// common is the world that the tests share. Only TestMain and shared touch it.
var common shared

type shared struct {
	ctx  context.Context
	once sync.Once
	dir  string
	rig  *rig.Rig
	err  error
}

// world starts the shared world for the first test that asks.
func world(t *testing.T) *rig.Rig {
	t.Helper()
	common.once.Do(func() { common.err = common.start() })
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.rig
}

func (s *shared) start() (err error) {
	ctx, cancel := context.WithTimeout(s.ctx, startBound)
	defer cancel()
	// Unix sockets have short names: the world lives in a short directory.
	if s.dir, err = os.MkdirTemp("", "ha-bin-"); err != nil {
		return err
	}
	s.rig, err = rig.Start(ctx, rig.Config{
		Dir: s.dir, Nodes: 1, Replicas: 2, AuditLog: filepath.Join(s.dir, "audit.log"),
		Values: []string{
			"leaderElection.leaseDuration=" + leaseDuration.String(), "leaderElection.renewDeadline=" + renewDeadline.String(),
			"leaderElection.retryPeriod=1s", "health.interval=2s",
		},
	})
	return err
}

func (s *shared) close(passed bool) error {
	var errs []error
	if s.rig != nil {
		errs = append(errs, s.rig.Stop())
	}
	if s.dir == "" {
		return nil
	}
	if err := errors.Join(errs...); err != nil || !passed {
		fmt.Fprintf(os.Stderr, "the logs are in %s\n", filepath.Join(s.dir, "logs"))
		return err
	}
	return os.RemoveAll(s.dir)
}

func driverSocket() string { return filepath.Join(common.dir, "driver.sock") }

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), testBound, fmt.Errorf("the test takes more than %v", testBound))
	t.Cleanup(cancel)
	return ctx
}

// logLine is a line of klog.
var logLine = regexp.MustCompile(`^[IWEF]\d{4} `)

// ends runs ha-sidecar, which has to end with the code and with one line, besides
// its log, that holds each of the texts.
func ends(t *testing.T, code int, args []string, texts ...string) {
	t.Helper()
	path, err := rig.Program("ha-sidecar")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) {
		t.Fatalf("ha-sidecar did not fail: %v", err)
	}
	if exit.ExitCode() != code {
		t.Errorf("exit code %d, want %d", exit.ExitCode(), code)
	}
	checkLastWord(t, stderr.String(), texts...)
}

// checkLastWord holds that the log ends with one line which is for people and
// holds the texts, and has no stack.
func checkLastWord(t *testing.T, log string, texts ...string) {
	t.Helper()
	var words []string
	for line := range strings.Lines(log) {
		if !logLine.MatchString(line) {
			words = append(words, line)
		}
	}
	if len(words) != 1 || !strings.HasPrefix(words[0], "ha-sidecar: ") || !strings.HasSuffix(log, words[0]) {
		t.Errorf("want one line besides the log, at its end; got %q in:\n%s", words, log)
		return
	}
	for _, text := range texts {
		if !strings.Contains(words[0], text) {
			t.Errorf("%q lacks %q", words[0], text)
		}
	}
	if strings.Contains(log, "goroutine ") {
		t.Errorf("there is a stack in the log:\n%s", log)
	}
}
