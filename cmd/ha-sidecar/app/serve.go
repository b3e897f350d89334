package app

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_master_status
	_ "k8s.io/component-base/metrics/prometheus/workqueue"               // workqueue_*

	"github.com/ha-sidecar/ha-sidecar/internal/httpserver"
	"github.com/ha-sidecar/ha-sidecar/internal/runner"
	"github.com/ha-sidecar/ha-sidecar/internal/version"
)

// serve opens the HTTP endpoint before anything else, so that a probe is
// answered while the driver is waited for.
func (p *process) serve(group *runner.Group) error {
	info := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "ha_sidecar_build_info", Help: "Always 1; the labels tell the build.", StabilityLevel: metrics.ALPHA,
	}, []string{"version", "revision", "go_version"})
	if err := p.registry.Register(info); err != nil {
		return err
	}
	v := version.Get()
	info.WithLabelValues(v.Version, v.Revision, v.GoVersion).Set(1)
	if p.opts.endpoint() == "" {
		return nil
	}
	srv, err := httpserver.Listen(group.Context(), p.opts.endpoint())
	if err != nil {
		return err
	}
	alive := httpserver.Checks()
	srv.Handle("/healthz", alive)
	// The probe of the replaced sidecars' manifests, which asks whether the leader
	// still renews: one that does not has ended.
	srv.Handle("/healthz/leader-election", alive)
	srv.Handle("/livez", alive)
	srv.Handle("/readyz", httpserver.Checks(
		httpserver.Check{Name: "driver", Do: p.driver.Ready},
		httpserver.Check{Name: "caches", Do: p.caches.ready}))
	srv.Handle(p.opts.MetricsPath, http.HandlerFunc(p.metrics))
	p.debug.register(srv)
	if p.opts.Profiles {
		registerProfiles(srv)
	}
	group.Go("http", srv.Run)
	return nil
}

// metrics serves all registries; that of the calls to the driver is another once
// the driver is known.
func (p *process) metrics(w http.ResponseWriter, r *http.Request) {
	gatherers := prometheus.Gatherers{p.registry, p.calls.registry(), legacyregistry.DefaultGatherer}
	promhttp.HandlerFor(gatherers, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}).ServeHTTP(w, r)
}

// caches starts the informers and knows when they are warm. They start before
// the election: a standby that takes over needs no time to read the cluster.
type caches struct{ warm atomic.Bool }

// run returns when ctx has ended and every informer has: those of the factory,
// and those beside it.
func (c *caches) run(ctx context.Context, shared informers.SharedInformerFactory, beside ...cache.SharedIndexInformer) error {
	var own sync.WaitGroup
	defer own.Wait()
	defer shared.Shutdown()
	shared.Start(ctx.Done())
	for _, inf := range beside {
		own.Go(func() { inf.Run(ctx.Done()) })
	}
	synced := true
	for _, inf := range beside {
		synced = cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) && synced
	}
	for _, ok := range shared.WaitForCacheSync(ctx.Done()) {
		synced = synced && ok
	}
	c.warm.Store(synced)
	<-ctx.Done()
	c.warm.Store(false)
	return nil
}

// ready is nil once every cache is warm.
func (c *caches) ready() error {
	if c.warm.Load() {
		return nil
	}
	return errors.New("caches are not synced: the API server is being read, or refuses a list (see the log)")
}
