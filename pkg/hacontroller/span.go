package hacontroller

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// One span covers a failover from its signal to its end, with a milestone as an
// event each. It begins with the first of them, since what is only refused is
// no failover, and is dated back to the signal.

// traceStep adds a milestone to the span of t, with t.mu held.
func (hac *haController) traceStep(ctx context.Context, t *track, pvs []string, step string, at time.Time) {
	if t.span == nil {
		_, t.span = hac.tracer.Start(ctx, "failover", trace.WithNewRoot(), trace.WithTimestamp(t.received), trace.WithAttributes(
			attribute.String("k8s.node.name", t.node),
			attribute.String("csi.driver", hac.driver),
			attribute.StringSlice("k8s.persistentvolumes", pvs),
		))
	}
	t.span.AddEvent(step, trace.WithTimestamp(at))
}

// traceEnd ends the span of t, if there is one. A walk that is given up did not
// reach MilestoneDone, and says why.
func (hac *haController) traceEnd(t *track, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.span == nil {
		return
	}
	if _, done := t.seen[MilestoneDone]; !done {
		t.span.SetStatus(codes.Error, why)
	}
	t.span.End(trace.WithTimestamp(hac.clock.Now()))
	t.span = nil
}

// endTraces ends the spans of the walks that the end of Run leaves to the next
// leader.
func (hac *haController) endTraces() {
	hac.mu.Lock()
	defer hac.mu.Unlock()
	for _, t := range hac.tracks {
		hac.traceEnd(t, "left to the next leader")
	}
}
