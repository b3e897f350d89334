package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/bench/track"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// program is a side that runs.
type program struct {
	*rig.Sidecar
	side side
}

// start runs a side under the chart's ServiceAccount and waits until it has
// attached and detached a first volume: its caches are warm then, and
// its connections made.
func (w *stage) start(ctx context.Context, s side, flags []string) (*program, error) {
	// The leases that an earlier run has left would have to run out first.
	err := w.admin.CoordinationV1().Leases(rig.SidecarNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("deleting old leases: %w", err)
	}
	p := &program{side: s}
	if s == ours {
		p.Sidecar, err = w.StartSidecar(ctx, flags...)
	} else {
		p.Sidecar, err = w.StartOther(ctx, s.name, "/metrics", flags...)
	}
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.title, err)
	}
	if err := errors.Join(s.startUp(ctx), w.warm(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("the first volume of %s: %w", s.title, err), p.Stop())
	}
	return p, nil
}

// startUp waits until a side works as it does most of the time. Ours reads each
// Node before it publishes for as long as a former leader might still write, which
// is --hold-off after the start.
func (s side) startUp(ctx context.Context) error {
	if s != ours {
		return nil
	}
	return world.Pause(ctx, holdOff+time.Second)
}

// holdOff is the chart's default.
const holdOff = 15 * time.Second

// refill is how long a limit of 5 requests/s with a burst of 10 takes to forget
// the first volume.
const refill = 2 * time.Second

func (w *stage) warm(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("it took longer than a minute"))
	defer cancel()
	t, err := trackAttachments(ctx, w.admin)
	if err != nil {
		return err
	}
	defer t.Stop()
	b, err := w.newBatch(ctx, 0, 1)
	if err != nil {
		return err
	}
	if err := b.attach(ctx, 0); err != nil {
		return err
	}
	if _, err := t.Await(ctx, b.names, attached); err != nil {
		return err
	}
	if err := b.detach(ctx, 0); err != nil {
		return err
	}
	if _, err := t.Await(ctx, b.names, track.Gone); err != nil {
		return err
	}
	return errors.Join(b.remove(ctx), world.Pause(ctx, refill))
}

// The calls of the driver that are counted.
const (
	publish   = "/csi.v1.Controller/ControllerPublishVolume"
	unpublish = "/csi.v1.Controller/ControllerUnpublishVolume"
)

// calls is how many calls of the driver have ended, by the metric that both
// sides have.
func (p *program) calls(method string) (int, error) {
	body, err := p.Body("/metrics")
	if err != nil {
		return 0, err
	}
	return countCalls(body, method)
}

// countCalls adds up csi_sidecar_operations_seconds_count over all its labels.
func countCalls(metrics, method string) (calls int, err error) {
	for line := range strings.Lines(metrics) {
		labels, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		if !found || !strings.HasPrefix(labels, "csi_sidecar_operations_seconds_count{") || !strings.Contains(labels, `method_name="`+method+`"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("reading %q of the metrics: %w", line, err)
		}
		calls += int(n)
	}
	return calls, nil
}

const (
	// quiet is how long nothing must have happened for a run to be over.
	quiet = 2 * time.Second
	look  = 250 * time.Millisecond
)

// settle waits until no call of the driver has ended for a while and gives their
// number.
func (p *program) settle(ctx context.Context, method string) (calls int, err error) {
	calls = -1
	for last := time.Now(); time.Since(last) < quiet; {
		now, err := p.calls(method)
		if err != nil {
			return 0, err
		}
		if now != calls {
			calls, last = now, time.Now()
		}
		if err := world.Pause(ctx, look); err != nil {
			return 0, err
		}
	}
	return calls, nil
}
