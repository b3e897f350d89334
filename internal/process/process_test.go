package process

import (
	"errors"
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

func TestOutput(t *testing.T) {
	const ready = "it is ready"
	o := newOutput(nil, ready)
	if got := o.tail(); got != "(nothing was printed)" {
		t.Errorf("tail() = %q before any output", got)
	}
	write := func(text string) {
		t.Helper()
		if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("Write() = %d, %v", n, err)
		}
	}
	// The text may come in pieces, and after much else.
	write(strings.Repeat("x", 100_000) + ready[:5])
	select {
	case <-o.ready:
		t.Fatal("ready too early")
	default:
	}
	write(ready[5:] + "\n")
	<-o.ready
	write(ready + " again\n")
	if got := o.tail(); len(got) > kept || !strings.HasSuffix(got, "again") {
		t.Errorf("tail() has %d bytes: ...%s", len(got), got[max(0, len(got)-20):])
	}
	// Text that scrolls by in one piece counts too.
	o = newOutput(nil, ready)
	write(ready + strings.Repeat("x", 2*kept))
	<-o.ready
}

func TestOutputThatNobodyTakes(t *testing.T) {
	o := newOutput(broken{}, "")
	if n, err := o.Write([]byte("words")); n != 5 || err != nil || o.tail() != "words" {
		t.Errorf("Write() = %d, %v, kept %q; the program must not notice", n, err, o.tail())
	}
	<-o.ready
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestStartOfNothing(t *testing.T) {
	if _, err := Start(Config{Path: "/no/such/program"}); err == nil {
		t.Error("Start() of a missing program succeeded")
	}
}
