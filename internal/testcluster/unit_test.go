package testcluster

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func kill(t *testing.T, pid string) {
	t.Helper()
	number, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(number, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	program, text := filepath.Join(dir, "program"), filepath.Join(dir, "text")
	for path, mode := range map[string]os.FileMode{program: 0o700, text: 0o600} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"good":        {Config{Binary: program, Args: []string{"etcd=--a=b"}}, ""},
		"missing":     {Config{Binary: filepath.Join(dir, "none")}, "run: make build"},
		"no program":  {Config{Binary: text}, "run: make build"},
		"a directory": {Config{Binary: dir}, "run: make build"},
		"no flag":     {Config{Binary: program, Args: []string{"--v=1"}}, "COMPONENT=--flag=value"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.cfg.validate()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestFindBinary(t *testing.T) {
	got, err := findBinary()
	if err != nil {
		t.Fatal(err)
	}
	if want, err := filepath.Abs("../../bin/localcluster"); err != nil || got != want {
		t.Errorf("got %s, want %s, %v", got, want, err)
	}
	t.Chdir(t.TempDir())
	if _, err := findBinary(); err == nil || !strings.Contains(err.Error(), "outside the repository") {
		t.Errorf("outside the repository: %v", err)
	}
}

func TestProcess(t *testing.T) {
	run := func(script string) *process {
		t.Helper()
		p, err := startProcess(exec.Command("/bin/sh", "-c", script), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	dead := run("echo some words; exit 7")
	<-dead.done
	if err := dead.err; err == nil || !strings.Contains(err.Error(), "exit status 7") || !strings.Contains(err.Error(), "some words") {
		t.Errorf("an end by itself: %v", err)
	}
	gentle := run("echo " + readyLine + "; exec sleep 60")
	<-gentle.ready
	if err := gentle.stop(time.Minute); err != nil || gentle.err != nil {
		t.Errorf("a stop: %v, %v", err, gentle.err)
	}
	stubborn := run("trap '' TERM; echo " + readyLine + "; while :; do sleep 0.05; done")
	<-stubborn.ready
	if err := stubborn.stop(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("a stop of what does not listen: %v", err)
	}
	if _, err := startProcess(exec.Command("/no/such/program"), io.Discard); err == nil {
		t.Error("no error without a program")
	}
}

func TestOutput(t *testing.T) {
	ready := make(chan struct{})
	o := &output{to: io.Discard, ready: ready}
	if got := o.tail(); got != "(nothing)" {
		t.Errorf("got %q before any output", got)
	}
	write := func(text string) {
		if n, err := o.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	// The line may come in pieces, and after much else.
	write(strings.Repeat("x", 100_000) + readyLine[:5])
	select {
	case <-ready:
		t.Fatal("ready too early")
	default:
	}
	write(readyLine[5:] + "\n")
	<-ready
	write(readyLine + " again\n")
	if got := o.tail(); len(got) > 16<<10 || !strings.HasSuffix(got, "again") {
		t.Errorf("the tail has %d bytes: ...%s", len(got), got[max(0, len(got)-20):])
	}
}
