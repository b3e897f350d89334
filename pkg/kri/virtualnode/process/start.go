package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// markerVar is an environment variable that names the container. Processes that
// a container forks inherit it, so that leftovers are found even where no
// record tells of them.
const markerVar = "VIRTUALNODE_CONTAINER"

// lostExitCode is what the kubelet reports too when nobody saw the exit.
const lostExitCode = 137

// Start starts a container. It fails if one of that ID runs.
func (r *Runtime) Start(spec Spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return errors.New("the runtime is closed")
	case len(spec.Argv) == 0:
		return errors.New("no command")
	case r.running[spec.ID] != nil:
		return fmt.Errorf("container %s already runs", spec.ID.Name)
	}
	if err := os.MkdirAll(r.Dir(spec.ID), 0o755); err != nil {
		return fmt.Errorf("making the directory of container %s: %w", spec.ID.Name, err)
	}
	cmd, err := r.spawn(spec)
	if err != nil {
		return err
	}
	pid := cmd.Process.Pid
	rec := Record{
		Pod: spec.ID.Pod, Name: spec.ID.Name, Attempt: spec.Attempt, PID: pid,
		StartTicks: readStat(pid).ticks, MachineBoot: machineBoot(), StartedAt: r.cfg.Clock.Now(),
	}
	handle, err := openPidfd(pid)
	if err == nil {
		err = r.save(rec)
	}
	if err != nil { // A container that is not on record must not run.
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		_ = cmd.Wait()
		return err
	}
	r.watch(rec, &proc{pid: pid, handle: handle, wait: waitChild(cmd), done: make(chan struct{})})
	return nil
}

func (r *Runtime) spawn(spec Spec) (*exec.Cmd, error) {
	log, err := os.OpenFile(r.LogPath(spec.ID), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the log of container %s: %w", spec.ID.Name, err)
	}
	defer func() { _ = log.Close() }()                  // The child holds its own copy.
	cmd := exec.Command(spec.Argv[0], spec.Argv[1:]...) //nolint:noctx // It outlives every context, and the agent.
	cmd.Env = append(append([]string{}, spec.Env...), r.marker(spec.ID))
	cmd.Dir = spec.WorkDir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Argv[0], err)
	}
	return cmd, nil
}

func (r *Runtime) marker(id ID) string { return markerVar + "=" + r.Dir(id) }

// waitChild reaps a child and tells how it ended.
func waitChild(cmd *exec.Cmd) func() (int, int) {
	return func() (int, int) {
		_ = cmd.Wait() // The state below says more than the error.
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok {
			return lostExitCode, 0
		}
		if status.Signaled() {
			return 128 + int(status.Signal()), int(status.Signal())
		}
		return status.ExitStatus(), 0
	}
}

// watch takes a living process into the books; r.mu is held.
func (r *Runtime) watch(rec Record, p *proc) {
	id := rec.ID()
	r.running[id], r.records[id] = p, rec
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		if !awaitExit(p.handle) {
			return // Closed: the process goes on without us.
		}
		r.finish(rec, p)
	}()
}

// finish ends what is left of the group while its number is still the dead
// leader's, then reaps and records.
func (r *Runtime) finish(rec Record, p *proc) {
	_ = syscall.Kill(-p.pid, syscall.SIGKILL)
	rec.Exited = true
	rec.ExitCode, rec.Signal = lostExitCode, 0
	if p.wait != nil {
		rec.ExitCode, rec.Signal = p.wait()
	} else {
		rec.Lost = true
	}
	rec.FinishedAt = r.cfg.Clock.Now()
	r.mu.Lock()
	if err := r.save(rec); err != nil {
		// The old record names a dead process; Adopt finds that out by itself.
		_ = err
	}
	_ = p.handle.Close()
	delete(r.running, rec.ID())
	r.records[rec.ID()] = rec
	close(p.done)
	r.mu.Unlock()
	r.cfg.OnExit(rec.ID())
}

func openPidfd(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("opening process %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd:%d", pid)), nil
}

// awaitExit blocks until the process has ended (true) or handle is closed
// (false). It parks on the poller and holds no thread.
func awaitExit(handle *os.File) bool {
	conn, err := handle.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	return err == nil
}
