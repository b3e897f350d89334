package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// crash makes a harness forget its containers as if its process had died.
func (h *harness) crash() { h.Close() }

func (h *harness) adopt(wantAdopted, wantKilled int) {
	h.t.Helper()
	adopted, killed, err := h.Adopt()
	if err != nil {
		h.t.Fatal(err)
	}
	if adopted != wantAdopted || killed != wantKilled {
		h.t.Errorf("adopted %d and killed %d, want %d and %d", adopted, killed, wantAdopted, wantKilled)
	}
}

func TestAdoptTakesOverTheLiving(t *testing.T) {
	root := t.TempDir()
	before := newHarness(t, root)
	id := before.start("c", "sleep", "1000")
	pid := before.record(id).PID
	before.crash()
	if !alive(pid) {
		t.Fatal("the container died with its agent")
	}
	after := newHarness(t, root)
	after.adopt(1, 0)
	after.adopt(0, 0) // Once is enough.
	if rec := after.record(id); rec.Exited || rec.PID != pid || after.Alive() != 1 {
		t.Errorf("record: %+v, alive: %d", rec, after.Alive())
	}
	if err := after.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	rec := after.awaitExit(id)
	if !rec.Lost || rec.ExitCode != lostExitCode {
		t.Errorf("record: %+v", rec)
	}
	awaitDead(t, pid)
}

func TestAdoptFindsTheDead(t *testing.T) {
	root := t.TempDir()
	before := newHarness(t, root)
	id := before.start("c", "sleep", "1000")
	before.crash()
	pid := before.record(id).PID
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	awaitDead(t, pid)
	after := newHarness(t, root)
	after.adopt(0, 0)
	if rec := after.record(id); !rec.Exited || !rec.Lost {
		t.Errorf("record: %+v", rec)
	}
}

func TestAdoptKeepsExitCodes(t *testing.T) {
	root := t.TempDir()
	before := newHarness(t, root)
	id := before.start("c", "sh", "-c", "exit 4")
	before.awaitExit(id)
	before.crash()
	after := newHarness(t, root)
	after.adopt(0, 0)
	if rec := after.record(id); rec.Lost || rec.ExitCode != 4 {
		t.Errorf("record: %+v", rec)
	}
}

// TestAdoptIsNotFooledByPIDs: the record names a PID that somebody else has by
// now.
func TestAdoptIsNotFooledByPIDs(t *testing.T) {
	root := t.TempDir()
	stranger := exec.Command("sleep", "1000")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stranger.Process.Kill()
		_ = stranger.Wait()
	}()
	h := newHarness(t, root)
	pid := stranger.Process.Pid
	for name, rec := range map[string]Record{
		"other-start": {PID: pid, StartTicks: readStat(pid).ticks - 1, MachineBoot: machineBoot()},
		"other-boot":  {PID: pid, StartTicks: readStat(pid).ticks, MachineBoot: "earlier"},
		"no-process":  {PID: 1 << 30, MachineBoot: machineBoot()},
	} {
		rec.Pod, rec.Name = "uid", name
		if err := os.MkdirAll(h.Dir(rec.ID()), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := h.save(rec); err != nil {
			t.Fatal(err)
		}
	}
	h.adopt(0, 0)
	for _, rec := range h.Records("uid") {
		if !rec.Lost {
			t.Errorf("%s was taken for alive", rec.Name)
		}
	}
	if !alive(pid) {
		t.Error("the stranger was killed")
	}
}

// TestAdoptKillsStrays: the leader died while no agent watched, and a child of
// its writes on.
func TestAdoptKillsStrays(t *testing.T) {
	root := t.TempDir()
	before := newHarness(t, root)
	id := before.start("c", "sh", "-c", "sh -c 'echo child $$; exec sleep 1000' & wait")
	child := childOf(t, before.awaitLog(id, "child"))
	lives := before.start("lives", "sh", "-c", "sh -c 'echo child $$; exec sleep 1000' & wait")
	livingChild := childOf(t, before.awaitLog(lives, "child"))
	before.crash()
	leader := before.record(id).PID
	_ = syscall.Kill(leader, syscall.SIGKILL)
	awaitDead(t, leader)
	other := newHarness(t, t.TempDir())
	other.adopt(0, 0)
	if !alive(child) {
		t.Fatal("another root's strays were killed")
	}
	after := newHarness(t, root)
	after.adopt(1, 1)
	awaitDead(t, child)
	if !alive(livingChild) {
		t.Error("the child of a living container was killed")
	}
}

func TestAdoptRefusesDamage(t *testing.T) {
	h := newHarness(t, t.TempDir())
	dir := h.Dir(ID{"uid", "c"})
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, stateFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Adopt(); err == nil {
		t.Error("a damaged record was ignored")
	}
}
