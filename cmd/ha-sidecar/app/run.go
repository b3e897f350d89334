package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/internal/events"
	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/internal/leader"
	"github.com/ha-sidecar/ha-sidecar/internal/runner"
	"github.com/ha-sidecar/ha-sidecar/internal/telemetry"
	"github.com/ha-sidecar/ha-sidecar/internal/version"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
)

// Run is the whole life of the process: serve health, connect to the driver,
// warm the caches, wait for the leases, run the controllers.
//
// When ctx ends, on SIGTERM, nothing new is begun. Calls to the driver that are
// under way may end, and their results are written, for as long as
// --drain-timeout; then the leases are released, and Run returns nil. If calls
// outlast the drain, Run returns an error and the leases are not released: the
// next leader waits until they run out. A lost lease breaks everything off.
func Run(ctx context.Context, opts *Options) error {
	enabled, err := opts.enabled()
	if err != nil {
		return &UsageError{err}
	}
	node, err := opts.ownNode()
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Starts", "version", version.Get().Version, "controllers", enabled,
		"failoverMode", opts.Failover.Mode, "fence", opts.Failover.Fence)
	p := &process{opts: opts, enabled: enabled, registry: metrics.NewKubeRegistry(), elect: &election{}, started: time.Now(), node: node}
	p.debug.elect = p.elect
	p.calls = newCallMetrics()
	if p.driver, err = csiclient.New(csiclient.Config{
		Address: opts.CSIAddress, Timeout: max(opts.Timeout, opts.provisionerTimeout(), pick(opts.Attacher.Timeout, opts.Timeout)), MaxReceiveBytes: opts.CSIMaxReceiveBytes,
		ListEntries: opts.Attacher.MaxEntries,
		Metrics:     p.calls, Registry: p.registry, Clock: clock.RealClock{},
	}); err != nil {
		return err
	}
	defer func() { _ = p.driver.Close() }()
	endTraces, err := p.trace(ctx)
	if err != nil {
		return err
	}
	defer endTraces()

	group := runner.NewGroup(ctx, opts.DrainTimeout+closing)
	if err := p.serve(group); err != nil {
		return err
	}
	group.Go("main", p.main)
	return group.Wait()
}

// process is what Run has made so far.
type process struct {
	opts     *Options
	enabled  []string
	registry metrics.KubeRegistry
	calls    *callMetrics
	driver   *csiclient.Client
	elect    *election
	caches   caches
	debug    debug
	tracer   trace.Tracer
	started  time.Time
	// node is the one that is provisioned for; empty: the whole cluster.
	node string
	// namespace is where leases and journal are; empty: not known.
	namespace string
}

// trace begins to export traces where the environment names a collector. The
// returned function sends what is left of them.
func (p *process) trace(ctx context.Context) (end func(), err error) {
	provider, shutdown, err := telemetry.Tracing(ctx, "ha-sidecar", version.Get().Version)
	if err != nil {
		return nil, err
	}
	p.tracer = provider.Tracer("github.com/ha-sidecar/ha-sidecar")
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closing/2)
		defer cancel()
		if err := shutdown(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to send the last traces")
		}
	}, nil
}

// main goes from the driver to the controllers.
func (p *process) main(ctx context.Context) error {
	if err := p.connect(ctx); err != nil {
		return err
	}
	p.calls.SetDriverName(p.driver.Name())
	node, err := p.findNode(ctx)
	if err != nil {
		return err
	}
	qps, burst := p.opts.limit()
	capacityQPS, capacityBurst := p.opts.Capacity.limit()
	clients, err := kube.NewClients(ctx, kube.Config{
		Kubeconfig: p.opts.kubeconfig(), Master: p.opts.Upstream.Master, QPS: qps, Burst: burst,
		CapacityQPS: capacityQPS, CapacityBurst: capacityBurst,
		UserAgent:    "ha-sidecar/" + version.Get().Version,
		LeaseTimeout: p.opts.Leader.RenewDeadline / 2, MayWrite: p.elect.IsLeader,
	})
	if err != nil {
		return err
	}
	if err := p.findNamespace(); err != nil {
		return err
	}
	if err := p.prepareElection(clients); err != nil {
		return err
	}
	// Events of the drain are told too.
	recorder := events.New(context.WithoutCancel(ctx), clients.Events, "ha-sidecar "+p.driver.Name())
	defer recorder.Shutdown()

	shared := kube.NewInformers(clients.Work)
	leases, err := kube.NewLeaseInformer(clients.Work)
	if err != nil {
		return err
	}
	built, parts, err := build(ctx, deps{
		opts: p.opts, driver: p.driver, clients: clients, shared: shared, leases: leases,
		recorder: recorder, registry: p.registry, leader: p.elect, tracer: p.tracer,
		namespace: p.namespace, started: p.started, node: node,
	}, p.enabled)
	if err != nil {
		return err
	}
	p.debug.built.Store(built)
	group := runner.NewGroup(ctx, 0) // Run's group has the bound
	group.Go("csiclient", p.driver.Run)
	group.Go("informers", func(ctx context.Context) error { return p.caches.run(ctx, shared, p.heartbeats(leases)...) })
	group.Go("leader", func(ctx context.Context) error { return p.lead(ctx, parts) })
	return group.Wait()
}

// heartbeats are watched for the health controller alone: without it the role
// to read them is not given.
func (p *process) heartbeats(leases cache.SharedIndexInformer) []cache.SharedIndexInformer {
	if !slices.Contains(p.enabled, controllerHealth) {
		return nil
	}
	return []cache.SharedIndexInformer{leases}
}

// connect waits for the driver, not for ever: a container that exits with the
// reason is easier to find than one that is silent.
func (p *process) connect(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, p.opts.CSIConnectTimeout)
	defer cancel()
	return p.driver.Connect(bounded)
}

// lead waits for the leases and runs the controllers under them.
func (p *process) lead(ctx context.Context, parts []part) error {
	return p.elect.Run(ctx, func(ctx, held context.Context) error {
		return runParts(ctx, held, p.opts.DrainTimeout, parts)
	})
}

// findNamespace decides where leases and journal are.
func (p *process) findNamespace() error {
	p.namespace = p.opts.Leader.Namespace
	if p.namespace == "" {
		p.namespace = ownNamespace()
	}
	if p.namespace == "" && (p.opts.elects() || slices.Contains(p.enabled, controllerProvisioner)) {
		return &UsageError{errors.New("--leader-election-namespace is needed outside a Pod: leases, and the provisioner's journal, are there")}
	}
	return nil
}

// prepareElection decides which leases are taken.
func (p *process) prepareElection(clients *kube.Clients) error {
	o := p.opts.Leader
	if !p.opts.elects() {
		p.elect.set(leader.None{})
		return nil
	}
	elector, err := leader.New(leader.Config{
		Client: clients.Lease, Namespace: p.namespace, Leases: leaseNames(p.driver.Name(), p.enabled), Labels: o.Labels,
		LeaseDuration: o.LeaseDuration, RenewDeadline: o.RenewDeadline, RetryPeriod: o.RetryPeriod,
	})
	if err != nil {
		return fmt.Errorf("preparing the election: %w", err)
	}
	p.elect.set(elector)
	return nil
}

// leaseNames lists our own lease first, then those of the replaced sidecars.
func leaseNames(driver string, enabled []string) []string {
	// Capitals are allowed in a driver's name and not in that of a Lease; the
	// replaced sidecars cannot hold one for such a driver.
	driver = strings.ToLower(driver)
	names := []string{leader.SanitizeName("ha-sidecar-" + driver)}
	for _, legacy := range legacyLeases {
		for _, name := range enabled {
			if name == legacy.controller {
				names = append(names, leader.SanitizeName(legacy.prefix+driver))
			}
		}
	}
	return names
}

// ownNamespace is the Pod's namespace, or empty outside a Pod.
func ownNamespace() string {
	if ns := os.Getenv("POD_NAMESPACE"); ns != "" {
		return ns
	}
	b, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
