package gate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a gate as the side that serves and the side that shuts see it.
func pair(t testing.TB) (serving, shutting *Gate) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gate")
	var gates [2]*Gate
	for i := range gates {
		g, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
		gates[i] = g
	}
	return gates[0], gates[1]
}

func TestNewGateIsShut(t *testing.T) {
	serving, _ := pair(t)
	for _, generation := range []uint64{0, 1} {
		if serving.Enter(generation) {
			t.Errorf("generation %d entered a new gate", generation)
		}
	}
}

func TestOpenKeepsTheState(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gate")
	first, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	first.Admit(7)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if !second.Passable(7) || second.Passable(6) || second.Broken() {
		t.Error("the gate forgot whom it admits")
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "none", "gate")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opening a gate in no directory: %v", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a directory became a gate")
	}
}

// TestShutWaits: Shut returns when the last operation has left, not before.
func TestShutWaits(t *testing.T) {
	serving, shutting := pair(t)
	shutting.Admit(1)
	for range 2 {
		if !serving.Enter(1) {
			t.Fatal("an admitted operation could not enter")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := shutting.Shut(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Shut with two inside: %v, want that it is still waiting", err)
	}
	if serving.Enter(1) {
		t.Error("the gate let somebody in while it was being shut")
	}
	serving.Leave()
	ended := make(chan error, 1)
	var left atomic.Bool
	go func() {
		err := shutting.Shut(t.Context())
		if !left.Load() {
			err = errors.Join(err, errors.New("Shut returned with one inside"))
		}
		ended <- err
	}()
	left.Store(true)
	serving.Leave()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestDeadHolder: the locks of a process that is gone do not hold the fence up.
func TestDeadHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gate")
	dying, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	shutting, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer shutting.Close()
	shutting.Admit(1)
	if !dying.Enter(1) {
		t.Fatal("could not enter")
	}
	if err := dying.Close(); err != nil { // as the kernel does for a dead process
		t.Fatal(err)
	}
	if err := shutting.Shut(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNoWriteAfterShut: whatever many writers do, nothing happens between Shut
// and the next Admit.
func TestNoWriteAfterShut(t *testing.T) {
	serving, shutting := pair(t)
	var shut atomic.Bool
	var late, done atomic.Int64
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for generation := uint64(1); generation <= 50; generation++ {
					if !serving.Enter(generation) {
						continue
					}
					if shut.Load() {
						late.Add(1)
					}
					done.Add(1)
					serving.Leave()
				}
			}
		})
	}
	for generation := uint64(1); generation <= 50; generation++ {
		shut.Store(false)
		shutting.Admit(generation)
		for before := done.Load(); done.Load() == before; {
			runtime.Gosched()
		}
		if err := shutting.Shut(t.Context()); err != nil {
			t.Fatal(err)
		}
		shut.Store(true)
	}
	close(stop)
	group.Wait()
	if late.Load() > 0 {
		t.Errorf("%d operations ran after the gate was shut", late.Load())
	}
}

// TestModel compares the gate with what it should be, whatever is done to it.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "gate")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		gate, err := Open(filepath.Join(dir, "gate"))
		if err != nil {
			rt.Fatal(err)
		}
		defer gate.Close()
		var admitted uint64
		broken := false
		rt.Repeat(map[string]func(*rapid.T){
			"admit": func(rt *rapid.T) {
				admitted = rapid.Uint64Range(1, 3).Draw(rt, "generation")
				gate.Admit(admitted)
			},
			"shut": func(rt *rapid.T) {
				admitted = 0
				if err := gate.Shut(t.Context()); err != nil {
					rt.Fatal(err)
				}
			},
			"break": func(rt *rapid.T) {
				broken = true
				if err := gate.Break(t.Context()); err != nil {
					rt.Fatal(err)
				}
			},
			"mend": func(*rapid.T) { broken = false; gate.Mend() },
			"": func(rt *rapid.T) {
				for generation := range uint64(4) {
					want := !broken && generation != 0 && generation == admitted
					got := gate.Enter(generation)
					if got {
						gate.Leave()
					}
					if got != want {
						rt.Fatalf("generation %d enters: %v, want %v", generation, got, want)
					}
				}
			},
		})
	})
}
