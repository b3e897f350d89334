package process

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(t *testing.T, script, ready string) *Process {
	t.Helper()
	p, err := Start(Config{Path: "/bin/sh", Args: []string{"-c", script}, ReadyText: ready})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestStopEndsAndIsNoFailure(t *testing.T) {
	p := shell(t, "echo go; exec sleep 100", "go")
	<-p.Ready()
	if err := p.Stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	if p.Err() != nil {
		t.Errorf("Err() = %v after Stop, want nil", p.Err())
	}
}

func TestStopKillsWhatDoesNotListen(t *testing.T) {
	p := shell(t, "trap '' TERM; echo deaf; while :; do sleep 100; done", "deaf")
	<-p.Ready()
	err := p.Stop(50 * time.Millisecond)
	if err == nil || !strings.Contains(err.Error(), "was killed: deaf") {
		t.Errorf("Stop() = %v, want that it was killed, with its output", err)
	}
	// The shell's own child is in its group.
	_ = syscall.Kill(-p.Pid(), syscall.SIGKILL)
}

func TestEndByItselfIsAFailure(t *testing.T) {
	p := shell(t, "echo last words; exit 3", "")
	<-p.Done()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "last words") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("Err() = %v, want the exit status and the output", err)
	}
	if p.ExitCode() != 3 {
		t.Errorf("ExitCode() = %d, want 3", p.ExitCode())
	}
}

func TestStartOfNothing(t *testing.T) {
	if _, err := Start(Config{Path: "/no/such/program"}); err == nil {
		t.Error("Start() of a missing program succeeded")
	}
}
