package testcluster

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a localcluster that was started.
type process struct {
	cmd    *exec.Cmd
	output *output
	// ready is closed when the ready line was printed, done when the process has
	// ended; err says why it did so by itself.
	ready    chan struct{}
	done     chan struct{}
	err      error
	stopping atomic.Bool
}

func startProcess(cmd *exec.Cmd, log io.Writer) (*process, error) {
	p := &process{cmd: cmd, ready: make(chan struct{}), done: make(chan struct{})}
	p.output = &output{to: log, ready: p.ready}
	cmd.Stdout, cmd.Stderr = p.output, p.output
	// A group of its own: Ctrl-C is for the parent, which stops it in its turn.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stopWithParent(cmd.SysProcAttr)
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("running %s: %w", cmd.Path, err)
	}
	return p, nil
}

// run starts the process and waits for its end on one thread: the kernel signals
// the child when the thread that started it ends, not only the whole parent.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	if !p.stopping.Load() {
		p.err = fmt.Errorf("localcluster ended by itself (%w): %s", orSuccess(err), p.output.tail())
	}
	close(p.done)
}

func orSuccess(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop asks the process to end, and makes it after the bound.
func (p *process) stop(bound time.Duration) error {
	p.stopping.Store(true)
	// An error says that it has ended already.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(bound):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return fmt.Errorf("localcluster did not stop within %s and was killed: %s", bound, p.output.tail())
}

// output passes on what localcluster prints, keeps the end of it for messages,
// and watches for the line that says it is ready.
type output struct {
	mu    sync.Mutex
	to    io.Writer
	ready chan struct{}
	kept  []byte
	found bool
}

func (o *output) Write(p []byte) (int, error) {
	const keep = 16 << 10
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept = append(o.kept, p...)
	o.kept = o.kept[max(0, len(o.kept)-keep):]
	if !o.found && strings.Contains(string(o.kept), readyLine) {
		o.found = true
		close(o.ready)
	}
	// Whatever becomes of the copy, localcluster shall not block or die of it.
	_, _ = o.to.Write(p)
	return len(p), nil
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if text := strings.TrimSpace(string(o.kept)); text != "" {
		return text
	}
	return "(nothing)"
}
