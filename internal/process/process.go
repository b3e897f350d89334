// Package process runs other programs for tests and demonstrations, and ends
// them with the caller, whatever becomes of it.
package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// Config of a Process.
type Config struct {
	// Path of the program, and its arguments.
	Path string
	Args []string
	// Env is added to the caller's environment.
	Env []string
	// Log receives what it prints; nil: nobody.
	Log io.Writer
	// ReadyText, when printed, closes Ready. Empty: Ready is closed at once.
	ReadyText string
}

// Process is a program that was started.
type Process struct {
	name     string
	cmd      *exec.Cmd
	output   *output
	done     chan struct{}
	err      error
	stopping atomic.Bool
}

// Start starts the program in a process group of its own: Ctrl-C is for the
// caller, which stops the program in its turn.
func Start(cfg Config) (*Process, error) {
	p := &Process{name: filepath.Base(cfg.Path), done: make(chan struct{}), output: newOutput(cfg.Log, cfg.ReadyText)}
	p.cmd = exec.Command(cfg.Path, cfg.Args...) // Stop ends it
	p.cmd.Env = append(os.Environ(), cfg.Env...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	// Grandchildren that live on may hold the pipes open.
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stopWithParent(p.cmd.SysProcAttr)
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("running %s: %w", cfg.Path, err)
	}
	return p, nil
}

// run starts the program and waits for its end on one thread: the kernel
// signals the child when the thread that started it ends, not only when the
// whole parent does.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	if err == nil {
		err = errors.New("exit status 0")
	}
	if !p.stopping.Load() {
		p.err = fmt.Errorf("%s ended by itself (%w): %s", p.name, err, p.output.tail())
	}
	close(p.done)
}

// Ready is closed once Config.ReadyText was printed.
func (p *Process) Ready() <-chan struct{} { return p.output.ready }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says why the program ended by itself; nil while it runs or after Stop.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// ExitCode is the program's exit code once Done is closed, -1 before and after
// a signal.
func (p *Process) ExitCode() int {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// Pid of the program.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Tail is the end of what the program has printed.
func (p *Process) Tail() string { return p.output.tail() }

// Signal sends sig; the program's end that follows counts as wanted.
func (p *Process) Signal(sig os.Signal) error {
	p.stopping.Store(true)
	return p.cmd.Process.Signal(sig)
}

// Kill ends the program at once.
func (p *Process) Kill() {
	p.stopping.Store(true)
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the program to end, and makes it after the bound.
func (p *Process) Stop(bound time.Duration) error {
	p.stopping.Store(true)
	// An error says that it has ended already.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	// One that is stopped cannot hear.
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("%s did not stop within %s and was killed: %s", p.name, bound, p.output.tail())
}
