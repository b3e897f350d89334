package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/failover"
	"github.com/ha-sidecar/ha-sidecar/pkg/hacontroller"
	"github.com/ha-sidecar/ha-sidecar/pkg/health"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Names of controllers, as --controllers and the logs know them.
const (
	controllerHealth       = "health"
	controllerFailover     = "failover"
	controllerProvisioner  = "provisioner"
	controllerAttacher     = "attacher"
	controllerHAController = "hacontroller"
)

// legacyLeases are the locks of the sidecars that a controller replaces: held
// too, so that an old one never acts beside it. The order is fixed, so that two
// processes never wait for each other.
var legacyLeases = []struct{ controller, prefix string }{
	// external-provisioner's has the driver's name alone.
	{controllerProvisioner, ""},
	{controllerAttacher, "external-attacher-leader-"},
	{controllerHealth, "external-health-monitor-leader-"},
}

// known are the controllers that --controllers can name.
var known = []string{controllerHealth, controllerFailover, controllerProvisioner, controllerAttacher}

func controllerNames() string { return strings.Join(known, ", ") }

// enabledControllers resolves --controllers as kube-controller-manager does: a
// name, "-name", and "*" for all that are not taken out.
func enabledControllers(selection []string) ([]string, error) {
	enabled, err := selected(selection)
	if err != nil {
		return nil, err
	}
	if len(enabled) == 0 {
		return nil, fmt.Errorf("--controllers=%s runs nothing; there are %s", strings.Join(selection, ","), controllerNames())
	}
	if slices.Contains(enabled, controllerFailover) && !slices.Contains(enabled, controllerHealth) {
		return nil, errors.New("--controllers: failover needs health, which gives it its verdicts")
	}
	return enabled, nil
}

// selected are the controllers that --controllers names, whether they can run
// together or not.
func selected(selection []string) (names []string, err error) {
	for _, s := range selection {
		if name := strings.TrimPrefix(s, "-"); s != "*" && !slices.Contains(known, name) {
			return nil, fmt.Errorf("--controllers: no controller %q; there are %s", name, controllerNames())
		}
	}
	for _, name := range known {
		on := slices.Contains(selection, "*") || slices.Contains(selection, name)
		if on && !slices.Contains(selection, "-"+name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// deps is what controllers are made from.
type deps struct {
	opts     *Options
	driver   *csiclient.Client
	clients  *kube.Clients
	shared   informers.SharedInformerFactory
	leases   cache.SharedIndexInformer
	recorder record.EventRecorder
	registry metrics.KubeRegistry
	leader   hacontroller.LeaderElector
	tracer   trace.Tracer
	// node is the one that is provisioned for; nil: the whole cluster.
	node *node
	// namespace is where our own objects are.
	namespace string
	// started is when the process began.
	started time.Time
}

// build makes the enabled controllers: the whole table. Each takes its
// informers in its constructor, so that they are warm before the election.
func build(ctx context.Context, d deps, enabled []string) (*controllers, []part, error) {
	var parts []part
	c := &controllers{}
	var err error
	if slices.Contains(enabled, controllerAttacher) {
		if c.attacher, err = newAttacher(d, c); err != nil {
			return nil, nil, fmt.Errorf("making the attacher: %w", err)
		}
		parts = append(parts, part{name: controllerAttacher, run: c.attacher.Run, drain: c.attacher.Drain})
	}
	if slices.Contains(enabled, controllerProvisioner) {
		p, err := newProvisioner(ctx, d, c)
		if err != nil {
			return nil, nil, fmt.Errorf("making the provisioner: %w", err)
		}
		c.provisioner = p
		parts = append(parts, part{name: controllerProvisioner, run: p.run, drain: p.controller.Drain})
	}
	if slices.Contains(enabled, controllerHealth) {
		if c.monitor, err = newHealth(d); err != nil {
			return nil, nil, fmt.Errorf("making the health controller: %w", err)
		}
		parts = append(parts, part{name: controllerHealth, run: c.monitor.Run})
	}
	if slices.Contains(enabled, controllerFailover) && d.opts.Failover.Mode != string(failover.ModeOff) {
		more, err := newFailover(d, c)
		if err != nil {
			return nil, nil, fmt.Errorf("making the failover controller: %w", err)
		}
		parts = append(parts, more...)
	}
	return c, parts, nil
}

func newAttacher(d deps, c *controllers) (*attach.Controller, error) {
	o := d.opts
	var evidence attach.Evidence
	if o.Attacher.ReconcileSync > 0 {
		evidence = d.driver
	}
	return attach.New(attach.Config{
		DriverName: d.driver.Name(), Driver: guarded{d.driver, d.leader},
		Capabilities: func() attach.Capabilities { return publishCapabilities(d.driver.Capabilities()) },
		Trivial:      !attachable(d.driver.Capabilities()),
		Evidence:     evidence, EvidenceInterval: o.Attacher.ReconcileSync, DetachOrphans: o.Attacher.DetachOrphans,
		ResyncInterval: o.Attacher.Resync, ManualDetachDelay: o.Attacher.ManualDetachDelay,
		DefaultFSType: o.Attacher.DefaultFSType,
		Client:        d.clients.Work, Informers: d.shared, Recorder: d.recorder, Registry: d.registry,
		Clock: clock.RealClock{}, IsLeader: d.leader.IsLeader,
		Workers:            pick(o.Attacher.WorkerThreads, o.WorkerThreads),
		Timeout:            pick(o.Attacher.Timeout, o.Timeout),
		RetryIntervalStart: pick(o.Attacher.RetryIntervalStart, o.RetryIntervalStart),
		RetryIntervalMax:   pick(o.Attacher.RetryIntervalMax, o.RetryIntervalMax),
		HoldOff:            o.attachHoldOff(),
		Released: func(h volume.Handle) {
			if c.provisioner != nil {
				c.provisioner.controller.Released(h)
			}
		},
	})
}

func newHealth(d deps) (*health.Monitor, error) {
	h := d.opts.Health
	return health.New(health.Config{
		DriverName: d.driver.Name(), Sweeper: d.driver,
		Client: d.clients.Work, Informers: d.shared, LeaseInformer: d.leases,
		Recorder: d.recorder, Registry: d.registry, Clock: clock.RealClock{},
		Interval: h.Interval, Confirmations: h.Confirmations, ConfirmAfter: h.ConfirmAfter,
		SuspectFor: h.SuspectFor, LegacyAbnormal: health.LegacyAbnormal(h.LegacyAbnormal), LeaseGrace: h.LeaseGrace,
	})
}

// newFailover makes the two ends of the failing-PV channel. Without the
// attacher nothing can be fenced, and hacontroller is left out: it would have
// no walk to do.
func newFailover(d deps, c *controllers) ([]part, error) {
	// Volumes that fail together are taken in together.
	failing := make(chan string, 256)
	decider, err := failover.New(failover.Config{
		Policy: d.opts.policy(d.driver.Name()), Verdicts: c.monitor, Informers: d.shared,
		Failing: failing, Recorder: d.recorder, Registry: d.registry, Clock: clock.RealClock{},
	})
	if err != nil {
		return nil, err
	}
	c.decider = decider
	parts := []part{{name: controllerFailover, run: decider.Run}}
	if c.attacher == nil {
		return parts, nil
	}
	f := d.opts.Failover
	options := []hacontroller.Option{
		hacontroller.WithAttacherName(d.driver.Name()),
		hacontroller.WithEventRecorder(d.recorder),
		hacontroller.WithLeaderElector(d.leader),
		hacontroller.WithInformerFactory(d.shared),
		hacontroller.WithTargets(decider),
		hacontroller.WithStrictScope(),
		hacontroller.WithRecovery(c.monitor.Recovered),
		hacontroller.WithRegistry(d.registry),
		hacontroller.WithTracer(d.tracer),
		hacontroller.WithFenceTimeout(d.opts.fenceTimeout()),
		hacontroller.WithEvictDeadline(f.EvictDeadline),
		hacontroller.WithEvictGraceMax(f.EvictGraceMax),
	}
	if f.OverridePDB {
		options = append(options, hacontroller.WithOverridePDB())
	}
	if f.Fence == string(failover.FenceUnpublish) {
		options = append(options, hacontroller.WithFencer(unpublishFence{c.attacher}))
	}
	mover := hacontroller.NewHAController(controllerHAController, d.clients.Work, failing, options...)
	return append(parts, part{name: controllerHAController, run: mover.Run}), nil
}

// pick returns own unless it is unset.
func pick[T comparable](own, common T) T {
	var unset T
	if own == unset {
		return common
	}
	return own
}
