package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

// Span is a time in which something is asked for all claims at once.
type Span struct {
	// Begun is before the first request, Ended when a watch told of the last
	// outcome, Settled when nobody wrote any more.
	Begun   time.Time `json:"begun"`
	Ended   time.Time `json:"ended"`
	Settled time.Time `json:"settled"`
	// CPU is what was used from Begun to Ended, in seconds, by program.
	CPU usage.CPU `json:"cpuSeconds"`
	// Requests of the side to the API server from Begun to Settled, and those of
	// kube-controller-manager's binder and protection of volumes and claims.
	Requests audit.Requests `json:"requests"`
	Manager  audit.Requests `json:"managerRequests"`
}

// Rate is how fast all became something.
type Rate struct {
	// PerSecond is their number by the time from Begun to the last.
	PerSecond float64 `json:"perSecond"`
	// Latency is from before the request for one to its outcome.
	Latency stats.Durations `json:"latencySeconds"`
}

// rateOf is of the times at which each was asked for and became something; it
// tells of the last, too.
func rateOf(begun time.Time, asked, became []time.Time) (r Rate, last time.Time) {
	latencies := make([]time.Duration, len(became))
	for i, at := range became {
		latencies[i] = at.Sub(asked[i])
		if at.After(last) {
			last = at
		}
	}
	if took := last.Sub(begun).Seconds(); took > 0 {
		r.PerSecond = float64(len(became)) / took
	}
	r.Latency = stats.Of(latencies)
	return r, last
}

// Provision is what became of claims that were created.
type Provision struct {
	Span
	// Made is of the PersistentVolumes, Bound of the claims.
	Made  Rate `json:"made"`
	Bound Rate `json:"bound"`
}

// Deletion is what became of claims that were deleted.
type Deletion struct {
	Span
	// Gone is of the PersistentVolumes.
	Gone Rate `json:"gone"`
	// Emptied is how long it took until the driver had no volume, in seconds.
	Emptied float64 `json:"emptiedSeconds"`
}

// Run is one run of one side.
type Run struct {
	Side      string    `json:"side"`
	Claims    int       `json:"claims"`
	Provision Provision `json:"provision"`
	Delete    Deletion  `json:"delete"`
	// Creates and Deletes are the calls of the driver over the whole run.
	Creates csidriver.Calls `json:"createVolumeCalls"`
	Deletes csidriver.Calls `json:"deleteVolumeCalls"`
	// Memory is that at the end of the run.
	Memory usage.Memory `json:"memory"`

	side side
}

// runBound is far above what any run takes.
const runBound = 30 * time.Minute

// run starts a side, lets it provision and delete, and stops it.
func (w *stage) run(ctx context.Context, s side, flags []string, claims int) (_ *Run, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runBound, fmt.Errorf("a run of %s took longer than %v", s.title, runBound))
	defer cancel()
	p, err := w.start(ctx, s, flags)
	if err != nil {
		return nil, err
	}
	r := &Run{Side: s.title, Claims: claims, side: s}
	if err := errors.Join(r.measure(ctx, w, p), p.stop()); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Run) measure(ctx context.Context, w *stage, p running) (err error) {
	if err := w.warm(ctx, r.side); err != nil {
		return err
	}
	w.driver.Forget()
	volumes, err := trackVolumes(ctx, w.admin)
	if err != nil {
		return err
	}
	defer volumes.Stop()
	b := w.newBatch(r.Claims)
	if r.Provision, err = b.provision(ctx, r.side, volumes); err != nil {
		return fmt.Errorf("provisioning: %w", err)
	}
	if r.Delete, err = b.remove(ctx, r.side, volumes); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	r.Creates, r.Deletes = w.driver.Calls(b.volumes())
	r.Memory, err = p.memory()
	return err
}

// asking does something to all of a batch side by side and remembers when.
func (b *batch) asking(ctx context.Context, do func(context.Context, int) error) (asked []time.Time, done <-chan error) {
	asked = make([]time.Time, len(b.names))
	result := make(chan error, 1)
	go func() {
		result <- world.Each(len(b.names), func(i int) error {
			asked[i] = time.Now()
			return do(ctx, i)
		})
	}()
	return asked, result
}

// provision creates the claims and waits until all are bound.
func (b *batch) provision(ctx context.Context, s side, volumes *track.Tracker) (p Provision, err error) {
	claims, err := trackClaims(ctx, b.w.admin)
	if err != nil {
		return p, err
	}
	defer claims.Stop()
	used := usage.ReadCPU()
	p.Begun = time.Now()
	asked, done := b.asking(ctx, b.create)
	boundAt, failed := claims.Await(ctx, b.names, bound)
	if err := errors.Join(failed, <-done); err != nil {
		return p, err
	}
	p.CPU = usage.ReadCPU().Since(used)
	madeAt, err := volumes.Await(ctx, b.names, made)
	if err != nil {
		return p, err
	}
	p.Made, _ = rateOf(p.Begun, asked, madeAt)
	p.Bound, p.Ended = rateOf(p.Begun, asked, boundAt)
	err = b.w.rest(ctx, s)
	p.Settled = time.Now()
	return p, err
}

// remove deletes the claims and waits until no volume is left, neither at the API
// server nor at the driver.
func (b *batch) remove(ctx context.Context, s side, volumes *track.Tracker) (d Deletion, err error) {
	used := usage.ReadCPU()
	d.Begun = time.Now()
	asked, done := b.asking(ctx, b.delete)
	goneAt, failed := volumes.Await(ctx, b.names, track.Gone)
	if err := errors.Join(failed, <-done, b.w.driver.AwaitEmpty(ctx)); err != nil {
		return d, err
	}
	d.Emptied = time.Since(d.Begun).Seconds()
	d.CPU = usage.ReadCPU().Since(used)
	d.Gone, d.Ended = rateOf(d.Begun, asked, goneAt)
	if err := b.w.rest(ctx, s); err != nil {
		return d, err
	}
	d.Settled = time.Now()
	left, err := b.w.admin.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return d, err
	}
	if len(left.Items) > 0 {
		return d, fmt.Errorf("%d PersistentVolumes are left, %s among them", len(left.Items), left.Items[0].Name)
	}
	return d, nil
}
