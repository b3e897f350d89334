package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is one running component.
type process struct {
	name    string
	logFile string
	cmd     *exec.Cmd
	// done is closed when the process has ended; err is its result then.
	done chan struct{}
	err  error
}

// startProcess runs this same binary as a component, with its output going to
// logFile. It reports the end to died.
func startProcess(binary, name string, args []string, logFile string, died chan<- *process) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", name, err)
	}
	defer log.Close()
	cmd := exec.Command(binary, append([]string{name}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own: Ctrl-C is for the parent, which stops the components in
	// order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
	p := &process{name: name, logFile: logFile, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go p.run(started, died)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// run starts the process and waits for its end on one thread: the kernel kills
// the child when the thread that started it ends, not only the whole parent.
func (p *process) run(started chan<- error, died chan<- *process) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	close(p.done)
	died <- p
}

// stop asks the process to end, and makes it after a grace period.
func (p *process) stop(grace time.Duration) {
	// An error says that it has ended already.
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return
	case <-time.After(grace):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// failure describes an end that nobody asked for.
func (p *process) failure() error {
	ended := "exit status 0"
	if p.err != nil {
		ended = p.err.Error()
	}
	tail, err := lastLines(p.logFile, 20)
	if err != nil {
		tail = err.Error()
	}
	return fmt.Errorf("%s ended by itself (%s); the last lines of %s:\n%s", p.name, ended, p.logFile, tail)
}
