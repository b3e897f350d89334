package virtualnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/mount"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/process"
)

// Agent is one virtual node.
type Agent struct {
	cfg     Config
	lock    *os.File // held as long as the agent uses its root directory
	drivers *csinode.Registry
	clients []*csinode.Client
	runtime *process.Runtime
	mounts  *mount.Manager
	about   *nodeProvider
	node    *nodeLoop
	watch   *nodeWatch
	pods    *podLoop
	runs    *podProvider
	health  *healthProber
	csiNode sync.Mutex // one driver at a time changes the CSINode
}

// New puts an Agent together. It takes the root directory for itself, and
// returns an error if another agent has it.
func New(cfg Config) (*Agent, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("configuring the virtual node: %w", err)
	}
	a := &Agent{cfg: cfg, drivers: csinode.NewRegistry()}
	lock, err := lockRoot(cfg.RootDir)
	if err != nil {
		return nil, err
	}
	a.lock = lock
	if err := a.assemble(); err != nil {
		return nil, errors.Join(err, a.close())
	}
	return a, nil
}

// assemble ties the parts: the node reports what mounts hold, and mounts wait
// for what the node has reported.
func (a *Agent) assemble() (err error) {
	for _, endpoint := range a.cfg.CSINodeSockets {
		client, err := csinode.New(csinode.Config{Endpoint: endpoint, Timeout: a.cfg.CSITimeout})
		if err != nil {
			return err
		}
		a.clients = append(a.clients, client)
	}
	a.about = &nodeProvider{cfg: &a.cfg, inUse: func() []v1.UniqueVolumeName { return a.mounts.InUse() }}
	a.node = newNodeLoop(&a.cfg, a.about, func(list []v1.UniqueVolumeName) { a.mounts.Acknowledge(list) })
	a.watch = newNodeWatch(&a.cfg, a.node.nodeGone)
	a.mounts, err = mount.New(mount.Config{
		NodeName: a.cfg.Name, Root: a.cfg.RootDir, Client: a.cfg.Client, Drivers: a.drivers,
		Reporter: a.node, Watcher: a.watch, Clock: a.cfg.Clock,
		AttachTimeout: a.cfg.AttachTimeout, APITimeout: a.cfg.APITimeout,
	})
	if err != nil {
		return err
	}
	a.runtime, err = process.New(process.Config{
		Root: a.cfg.RootDir, Clock: a.cfg.Clock,
		OnExit: func(id process.ID) { a.pods.podChanged(id.Pod) },
	})
	if err != nil {
		return err
	}
	store := newHealthStore(a.cfg.Clock)
	a.runs = newPodProvider(&a.cfg, a.runtime, a.mounts, store)
	a.pods = newPodLoop(&a.cfg, a.runs)
	a.health = &healthProber{cfg: &a.cfg, drivers: a.drivers, mounts: a.mounts, store: store, changed: a.pods.podChanged}
	return nil
}

// lockRoot makes the root directory and takes it.
func lockRoot(root string) (*os.File, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("making the root directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the root directory: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another agent uses %s: %w", root, err), lock.Close())
	}
	return lock, nil
}

func (a *Agent) close() error {
	var errs []error
	for _, c := range a.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, a.lock.Close())...)
}

// Run is the node until ctx ends. Then it stops containers, unmounts and posts
// Ready=False, unless it keeps containers; the Lease is left to run out.
func (a *Agent) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.runs.Start(ctx); err != nil {
		return fmt.Errorf("starting the virtual node: %w", err)
	}
	defer a.runs.Stop()
	boot, err := bootID(a.cfg.RootDir, a.cfg.BootID, a.runtime.Alive() > 0 || len(a.mounts.Users()) > 0)
	if err != nil {
		return fmt.Errorf("starting the virtual node: %w", err)
	}
	a.about.boot(boot)

	// The node outlives the pods: while they are stopped it keeps its Lease and
	// reports what is still mounted.
	nodeCtx, stopNode := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNode()
	group, groupCtx := errgroup.WithContext(nodeCtx)
	group.Go(func() error { return a.node.Run(groupCtx) })
	group.Go(func() error { return a.watch.Run(groupCtx) })
	group.Go(func() error { return a.health.Run(groupCtx) })
	for _, client := range a.clients {
		group.Go(func() error { a.registerDriver(groupCtx, client); return nil })
	}
	podsErr := a.pods.Run(ctx)
	stopErr := a.shutdown(ctx)
	stopNode()
	return errors.Join(podsErr, stopErr, group.Wait())
}

// shutdown ends what runs on the node, in bounded time.
func (a *Agent) shutdown(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.ShutdownGrace+2*a.cfg.APITimeout)
	defer cancel()
	a.cfg.Faults.Release(nodectl.Lasting()...) // Whatever hangs on purpose is to end too.
	a.about.stop()
	var podsErr error
	if a.cfg.KeepContainers {
		logger.Info("Leaving containers and mounts alone")
	} else {
		podsErr = a.pods.shutdown(ctx)
	}
	reportCtx, cancelReport := context.WithTimeout(ctx, min(a.cfg.APITimeout, 5*time.Second))
	defer cancelReport()
	if err := a.node.ReportNode(reportCtx); err != nil {
		logger.Info("Could not report that the node stops", "err", err)
	}
	return podsErr
}

// Status tells what the node runs, holds and suffers.
func (a *Agent) Status() nodectl.Status {
	a.about.mu.Lock()
	boot := a.about.bootID
	a.about.mu.Unlock()
	out := nodectl.Status{
		Node: a.cfg.Name, BootID: boot, PID: os.Getpid(), Faults: a.cfg.Faults.Active(),
		Pods: a.podStates(), VolumesInUse: []string{}, Drivers: []string{},
	}
	for _, name := range a.mounts.InUse() {
		out.VolumesInUse = append(out.VolumesInUse, string(name))
	}
	for _, d := range a.drivers.All() {
		out.Drivers = append(out.Drivers, d.Name)
	}
	return out
}
