package cluster

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The components of these tests are the shell: startProcess gives the name of
// the component as the first argument, which here is its -c.
func startShell(t *testing.T, script string, died chan<- *process) *process {
	t.Helper()
	p, err := startProcess("/bin/sh", "-c", []string{script}, filepath.Join(t.TempDir(), "log"), died)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestDeath(t *testing.T) {
	died := make(chan *process, 1)
	startShell(t, "echo first; echo last words; exit 3", died)
	err := (<-died).failure()
	if !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "first\nlast words") {
		t.Errorf("got %v", err)
	}
}

func TestStop(t *testing.T) {
	died := make(chan *process, 2)
	gentle := startShell(t, "exec sleep 60", died)
	stubborn := startShell(t, "trap '' TERM; echo deaf; while :; do sleep 0.1; done", died)
	for heard := ""; heard == ""; time.Sleep(10 * time.Millisecond) {
		heard, _ = lastLines(stubborn.logFile, 1)
	}
	began := time.Now()
	gentle.stop(time.Minute)
	stubborn.stop(50 * time.Millisecond)
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("stopping took %s", took)
	}
	// Who has ended already stops at once.
	gentle.stop(time.Minute)
}

func TestStartFails(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if _, err := startProcess("/no/such/binary", Etcd, nil, log, nil); err == nil || !strings.Contains(err.Error(), "starting etcd") {
		t.Errorf("without a binary: %v", err)
	}
	if _, err := startProcess("/bin/sh", Etcd, nil, "/no/such/dir/log", nil); err == nil || !strings.Contains(err.Error(), "opening the log of etcd") {
		t.Errorf("without a log: %v", err)
	}
}

func TestAwait(t *testing.T) {
	later := time.Now().Add(time.Minute)
	never := func(context.Context) error { return errors.New("not yet") }
	s := &supervisor{died: make(chan *process, 1)}

	attempts := 0
	third := func(ctx context.Context) error {
		if attempts++; attempts < 3 {
			return never(ctx)
		}
		return nil
	}
	if err := s.await(context.Background(), later, "it", third); err != nil || attempts != 3 {
		t.Errorf("got %v after %d attempts", err, attempts)
	}
	err := s.await(context.Background(), time.Now(), "it", never)
	if err == nil || !strings.Contains(err.Error(), "for it: not yet") {
		t.Errorf("when the time is up: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.await(ctx, later, "it", never); !errors.Is(err, errStopped) {
		t.Errorf("when asked to stop: %v", err)
	}
	startShell(t, "echo gone", s.died)
	if err := s.await(context.Background(), later, "it", never); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("when a component dies: %v", err)
	}
}
