// Package process runs containers as processes of the machine, each in its own
// process group. What it starts survives the death of the agent: state is on
// disk, and a new Runtime takes living processes over.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// ID names a container: one per pod UID and container name, over restarts.
type ID struct {
	Pod  types.UID
	Name string
}

// Spec is what to start.
type Spec struct {
	ID ID
	// Argv is the program and its arguments; a program without a slash is
	// looked up in the agent's PATH.
	Argv []string
	// Env is the whole environment of the process.
	Env []string
	// WorkDir is the directory that the process starts in.
	WorkDir string
	// Attempt counts the starts of the container, from 0.
	Attempt int
}

// Config configures a Runtime.
type Config struct {
	// Root is the directory under which pods/<UID>/containers/<name> live.
	Root  string
	Clock clock.WithTicker
	// OnExit is told, from a goroutine of the Runtime, of every container that
	// ended, after its state is on disk. It must not block. May be nil.
	OnExit func(ID)
}

// Runtime starts, watches and stops containers. It is safe for concurrent use.
type Runtime struct {
	cfg Config

	mu      sync.Mutex
	running map[ID]*proc
	records map[ID]Record
	closed  bool
	wg      sync.WaitGroup
}

// proc is a living container.
type proc struct {
	pid    int
	handle *os.File // pidfd
	wait   func() (exitCode, signal int)
	done   chan struct{}
}

// New returns a Runtime that knows of nothing yet; Adopt loads what is on disk.
func New(cfg Config) (*Runtime, error) {
	if !filepath.IsAbs(cfg.Root) {
		return nil, fmt.Errorf("root directory %q is not absolute", cfg.Root)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.OnExit == nil {
		cfg.OnExit = func(ID) {}
	}
	return &Runtime{cfg: cfg, running: map[ID]*proc{}, records: map[ID]Record{}}, nil
}

// Dir is where the container keeps its log, its working directory and its state.
func (r *Runtime) Dir(id ID) string {
	return filepath.Join(r.cfg.Root, "pods", string(id.Pod), "containers", id.Name)
}

// LogPath is the file with the container's output, over restarts.
func (r *Runtime) LogPath(id ID) string { return filepath.Join(r.Dir(id), "log") }

// Records returns the latest attempt of every container of the pod, by name.
func (r *Runtime) Records(pod types.UID) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Record
	for id, rec := range r.records {
		if id.Pod == pod {
			out = append(out, rec)
		}
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Pods returns the UIDs of all pods that have a container on record.
func (r *Runtime) Pods() []types.UID {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[types.UID]bool{}
	var out []types.UID
	for id := range r.records {
		if !seen[id.Pod] {
			seen[id.Pod] = true
			out = append(out, id.Pod)
		}
	}
	slices.Sort(out)
	return out
}

// Alive returns the number of living containers.
func (r *Runtime) Alive() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

// Forget drops the records of a pod without living containers.
func (r *Runtime) Forget(pod types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.running {
		if id.Pod == pod {
			return fmt.Errorf("container %s of pod %s still runs", id.Name, pod)
		}
	}
	for id := range r.records {
		if id.Pod == pod {
			delete(r.records, id)
		}
	}
	return nil
}

// Stop ends a container: SIGTERM to its process group, SIGKILL after grace or
// at once if that is not positive. It returns when the process is gone, or
// with ctx's error. A container that does not run is no error.
func (r *Runtime) Stop(ctx context.Context, id ID, grace time.Duration) error {
	r.mu.Lock()
	p := r.running[id]
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	if grace > 0 {
		if err := p.signal(syscall.SIGTERM); err != nil {
			return fmt.Errorf("terminating container %s: %w", id.Name, err)
		}
		timer := r.cfg.Clock.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C():
		}
	}
	if err := p.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("killing container %s: %w", id.Name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// KillAll sends SIGKILL to every process group and does not wait.
func (r *Runtime) KillAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.running {
		_ = p.signal(syscall.SIGKILL) // The group may have ended by itself.
	}
}

// Close stops watching. Containers that run go on running, as children of
// whoever adopts them.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.closed = true
	for _, p := range r.running {
		_ = p.handle.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// signal is sent while the leader is alive or a zombie that nobody has reaped,
// so that the group's number cannot belong to anybody else.
func (p *proc) signal(sig syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := syscall.Kill(-p.pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signalling process group %d: %w", p.pid, err)
	}
	return nil
}
