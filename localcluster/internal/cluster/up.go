package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// startBound is generous: a busy machine is no reason to fail.
	startBound = 3 * time.Minute
	stopGrace  = 5 * time.Second
)

// errStopped says that a stop was asked for while the cluster was starting.
var errStopped = errors.New("asked to stop")

// Up runs a control plane until ctx ends, which is success, or a component does.
// It tells on out when the cluster is ready, and leaves nothing running.
func Up(ctx context.Context, o Options, out io.Writer) error {
	began := time.Now()
	l := layout(o.Dir)
	lock, err := l.claim()
	if err != nil {
		return err
	}
	defer lock.Close()
	p, release, err := reserveAll(o)
	if err != nil {
		return err
	}
	defer release()
	if err := prepare(l, o, p); err != nil {
		return err
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the binary to run the components from: %w", err)
	}
	s := &supervisor{binary: binary, layout: l, options: o, ports: p, died: make(chan *process, len(Components))}
	defer s.stop()
	switch err := s.start(ctx); {
	case errors.Is(err, errStopped):
		return nil
	case err != nil:
		return err
	}
	kubeconfig := l.path(adminKubeconfig)
	if o.Kubeconfig != "" && o.Kubeconfig != kubeconfig {
		if err := copyFile(kubeconfig, o.Kubeconfig); err != nil {
			return err
		}
		kubeconfig = o.Kubeconfig
	}
	fmt.Fprintf(out, "localcluster is ready: kubeconfig %s (server %s, after %.1fs)\n",
		kubeconfig, p.url(APIServer), time.Since(began).Seconds())
	select {
	case <-ctx.Done():
		return nil
	case dead := <-s.died:
		return dead.failure()
	}
}

// prepare writes what the components read.
func prepare(l layout, o Options, p ports) error {
	if err := l.credentials(p.url(APIServer)); err != nil {
		return fmt.Errorf("preparing credentials: %w", err)
	}
	if o.AuditLog == "" {
		return nil
	}
	if err := writeFile(l.path("audit-policy.yaml"), []byte(auditPolicy)); err != nil {
		return fmt.Errorf("preparing the audit policy: %w", err)
	}
	// Here, because kube-apiserver only logs that it cannot write there.
	file, err := os.OpenFile(o.AuditLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write --audit-log %s: %w; name a file that this user may write", o.AuditLog, err)
	}
	return file.Close()
}

// supervisor starts, watches and stops the components of one cluster.
type supervisor struct {
	binary  string
	layout  layout
	options Options
	ports   ports
	running []*process
	died    chan *process
}

// start brings the components up, each once it can reach what it needs: one that
// comes too early loses more time waiting for its next attempt.
func (s *supervisor) start(ctx context.Context) error {
	get, err := getter(s.layout.path(adminKubeconfig))
	if err != nil {
		return err
	}
	deadline := time.Now().Add(startBound)
	for _, step := range s.steps(get) {
		for _, component := range step.run {
			if err := s.run(component); err != nil {
				return err
			}
		}
		if err := s.await(ctx, deadline, step.what, step.is); err != nil {
			return err
		}
	}
	return nil
}

// step is what to start, and what to wait for then.
type step struct {
	run  []string
	what string
	is   probe
}

// steps leaves out what is somebody else's to start, and what comes of it.
func (s *supervisor) steps(get func(url string) probe) []step {
	server := s.ports.url(APIServer)
	steps := []step{
		{[]string{Etcd}, "etcd to listen", dialable(s.ports[Etcd])},
		{[]string{APIServer}, "kube-apiserver to be ready", get(server + "/readyz")},
	}
	clients := slices.DeleteFunc([]string{ControllerManager, Scheduler}, func(c string) bool { return slices.Contains(s.options.Without, c) })
	run := clients // at once
	for _, component := range clients {
		steps = append(steps, step{run, component + " to be healthy", get(s.ports.url(component) + "/healthz")})
		run = nil
	}
	if slices.Contains(clients, ControllerManager) {
		steps = append(steps, step{nil, "the service account default/default", get(server + "/api/v1/namespaces/default/serviceaccounts/default")})
	}
	return steps
}

func (s *supervisor) run(component string) error {
	args := arguments(component, s.layout, s.options, s.ports)
	p, err := startProcess(s.binary, component, args, s.layout.log(component), s.died)
	if err != nil {
		return err
	}
	s.running = append(s.running, p)
	return nil
}

// await repeats a probe until it succeeds, a component dies, a stop is asked for
// or the time is up.
func (s *supervisor) await(ctx context.Context, deadline time.Time, what string, is probe) error {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, probeTimeout)
		err := is(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errStopped
		case dead := <-s.died:
			return dead.failure()
		case <-ticker.C:
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s: %w; the logs are in %s", startBound, what, err, s.layout.path("logs"))
		}
	}
}

// stop ends the components in the reverse order, clients before servers; the two
// clients of kube-apiserver at once.
func (s *supervisor) stop() {
	var clients sync.WaitGroup
	for i := len(s.running) - 1; i >= 0; i-- {
		p := s.running[i]
		if isClient(p.name) {
			clients.Go(func() { p.stop(stopGrace) })
			continue
		}
		clients.Wait()
		p.stop(stopGrace)
	}
	clients.Wait()
}
