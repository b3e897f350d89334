package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bound is how long an event may take on a busy machine.
const bound = 20 * time.Second

type harness struct {
	*Runtime
	t     *testing.T
	root  string
	exits chan ID
}

func newHarness(t *testing.T, root string) *harness {
	t.Helper()
	h := &harness{t: t, root: root, exits: make(chan ID, 100)}
	r, err := New(Config{Root: root, OnExit: func(id ID) { h.exits <- id }})
	if err != nil {
		t.Fatal(err)
	}
	h.Runtime = r
	t.Cleanup(func() {
		r.KillAll()
		r.Close()
	})
	return h
}

func (h *harness) start(name string, argv ...string) ID {
	h.t.Helper()
	id := ID{Pod: "uid", Name: name}
	if err := h.Start(Spec{ID: id, Argv: argv, Env: []string{"PATH=" + os.Getenv("PATH"), "GREETING=hello"}}); err != nil {
		h.t.Fatal(err)
	}
	return id
}

func (h *harness) awaitExit(id ID) Record {
	h.t.Helper()
	select {
	case got := <-h.exits:
		if got != id {
			h.t.Fatalf("%v ended, not %v", got, id)
		}
	case <-time.After(bound):
		h.t.Fatalf("%v did not end", id)
	}
	return h.record(id)
}

func (h *harness) record(id ID) Record {
	h.t.Helper()
	for _, rec := range h.Records(id.Pod) {
		if rec.Name == id.Name {
			return rec
		}
	}
	h.t.Fatalf("no record of %v", id)
	return Record{}
}

// awaitLog waits for a container to have printed a line.
func (h *harness) awaitLog(id ID, line string) string {
	h.t.Helper()
	for end := time.Now().Add(bound); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		b, err := os.ReadFile(h.LogPath(id))
		if err == nil && strings.Contains(string(b), line) {
			return string(b)
		}
	}
	h.t.Fatalf("%v did not print %q", id, line)
	return ""
}

func alive(pid int) bool { return readStat(pid).alive() }

func awaitDead(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(bound); alive(pid); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d lives", pid)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		code   int
		signal int
	}{
		"success": {"exit 0", 0, 0},
		"failure": {"exit 3", 3, 0},
		"signal":  {"kill -9 $$", 137, 9},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, t.TempDir())
			rec := h.awaitExit(h.start("c", "sh", "-c", tc.script))
			if !rec.Exited || rec.Lost || rec.ExitCode != tc.code || rec.Signal != tc.signal {
				t.Errorf("record: %+v", rec)
			}
			if rec.FinishedAt.Before(rec.StartedAt) || rec.StartedAt.IsZero() {
				t.Errorf("ran from %v to %v", rec.StartedAt, rec.FinishedAt)
			}
			var onDisk Record
			if err := ReadJSON(filepath.Join(h.Dir(rec.ID()), stateFile), &onDisk); err != nil || !onDisk.Exited || onDisk.ExitCode != tc.code {
				t.Errorf("on disk: %+v, %v", onDisk, err)
			}
		})
	}
}

func TestStartPassesEnvironmentAndDirectory(t *testing.T) {
	h := newHarness(t, t.TempDir())
	dir := t.TempDir()
	id := ID{Pod: "uid", Name: "c"}
	for attempt := range 2 { // The log is kept over restarts.
		err := h.Start(Spec{ID: id, Attempt: attempt, WorkDir: dir, Env: []string{"A=b"}, Argv: []string{"/bin/sh", "-c", `echo "$A $PWD"; echo oops >&2`}})
		if err != nil {
			t.Fatal(err)
		}
		if rec := h.awaitExit(id); rec.Attempt != attempt {
			t.Errorf("attempt %d is recorded as %d", attempt, rec.Attempt)
		}
	}
	if log := h.awaitLog(id, "oops"); log != strings.Repeat("b "+dir+"\noops\n", 2) {
		t.Errorf("log: %q", log)
	}
}

func TestStartFails(t *testing.T) {
	h := newHarness(t, t.TempDir())
	for name, argv := range map[string][]string{"missing": {"/no/such/program"}, "empty": nil, "dir": {"/"}} {
		if err := h.Start(Spec{ID: ID{"uid", name}, Argv: argv}); err == nil {
			t.Errorf("%s: started", name)
		}
	}
	if recs := h.Records("uid"); len(recs) != 0 {
		t.Errorf("recorded: %v", recs)
	}
	id := h.start("c", "sleep", "1000")
	if err := h.Start(Spec{ID: id, Argv: []string{"true"}}); err == nil {
		t.Error("a container was started twice")
	}
	h.Close()
	if err := h.Start(Spec{ID: ID{"uid", "late"}, Argv: []string{"true"}}); err == nil {
		t.Error("started after Close")
	}
	_ = syscall.Kill(-h.record(id).PID, syscall.SIGKILL)
}

func TestStopTerminatesTheGroup(t *testing.T) {
	h := newHarness(t, t.TempDir())
	id := h.start("c", "sh", "-c", "trap 'echo bye; exit 5' TERM; sh -c 'echo child $$; exec sleep 1000' & echo ready; wait")
	log := h.awaitLog(id, "child")
	h.awaitLog(id, "ready")
	if err := h.Stop(t.Context(), id, time.Minute); err != nil {
		t.Fatal(err)
	}
	rec := h.awaitExit(id)
	if rec.ExitCode != 5 {
		t.Errorf("exit code %d, want that of the trap", rec.ExitCode)
	}
	awaitDead(t, childOf(t, log))
	if err := h.Stop(t.Context(), id, time.Minute); err != nil {
		t.Errorf("stopping what has stopped: %v", err)
	}
}

func childOf(t *testing.T, log string) int {
	t.Helper()
	_, rest, _ := strings.Cut(log, "child ")
	pid, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestStopKillsTheStubborn(t *testing.T) {
	h := newHarness(t, t.TempDir())
	id := h.start("c", "sh", "-c", "trap '' TERM; sh -c 'trap \"\" TERM; echo child $$; while :; do sleep 1; done' & echo ready; while :; do sleep 1; done")
	child := childOf(t, h.awaitLog(id, "child"))
	h.awaitLog(id, "ready")
	began := time.Now()
	if err := h.Stop(t.Context(), id, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("killed after %v, within the grace", took)
	}
	if rec := h.awaitExit(id); rec.Signal != int(syscall.SIGKILL) {
		t.Errorf("record: %+v", rec)
	}
	awaitDead(t, child)
}

func TestStopCanBeInterruptedAndShortened(t *testing.T) {
	h := newHarness(t, t.TempDir())
	id := h.start("c", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
	h.awaitLog(id, "ready")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.Stop(ctx, id, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("interrupted stop: %v", err)
	}
	if h.record(id).Exited {
		t.Fatal("stopped within its grace")
	}
	if err := h.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
}

// TestLeaderExitEndsTheGroup: a child left behind by the container's process
// would go on writing.
func TestLeaderExitEndsTheGroup(t *testing.T) {
	h := newHarness(t, t.TempDir())
	id := h.start("c", "sh", "-c", "sh -c 'echo child $$; exec sleep 1000' & read x < /dev/null; sleep 0.2; exit 0")
	child := childOf(t, h.awaitLog(id, "child"))
	if rec := h.awaitExit(id); rec.ExitCode != 0 {
		t.Errorf("record: %+v", rec)
	}
	awaitDead(t, child)
}

func TestForget(t *testing.T) {
	h := newHarness(t, t.TempDir())
	id := h.start("c", "sleep", "1000")
	if err := h.Forget("uid"); err == nil {
		t.Error("a running container was forgotten")
	}
	if err := h.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if err := h.Forget("uid"); err != nil || len(h.Pods()) != 0 {
		t.Errorf("forgetting: %v, left %v", err, h.Pods())
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{Root: "relative"}); err == nil {
		t.Error("a relative root was accepted")
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b (c) S 1 41 41 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 1"
	if st := parseStat(line); !st.alive() || st.pgrp != 41 || st.ticks != 987654 {
		t.Errorf("parsed %+v", st)
	}
	if parseStat(strings.Replace(line, " S ", " Z ", 1)).alive() {
		t.Error("a zombie lives")
	}
	if st := readStat(os.Getpid()); !st.alive() || st.pgrp != syscall.Getpgrp() {
		t.Errorf("this process is %+v", st)
	}
	rapid.Check(t, func(t *rapid.T) { parseStat(rapid.String().Draw(t, "line")) })
}
