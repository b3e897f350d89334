package health

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// idle is how long the loop sleeps when nothing is due.
const idle = time.Hour

// loop is the one owner of the tracker: it takes what came in, lets the tracker
// do what is due, and publishes the outcome.
func (m *Monitor) loop(ctx context.Context) {
	now := m.cfg.Clock.Now()
	m.drain(ctx, now)
	m.recall(ctx, now)
	m.publish(ctx, true)
	timer := m.cfg.Clock.NewTimer(m.untilNext())
	defer timer.Stop()
	for {
		work := func() {}
		select {
		case <-ctx.Done():
			return
		case <-m.inbox.ready:
			work = func() { m.drain(ctx, m.cfg.Clock.Now()) }
		case result := <-m.swept:
			work = func() { m.takeSweep(result) }
		case a := <-m.answers:
			work = func() { m.takeAnswers(ctx, a) }
		case <-timer.C():
		}
		timer.Reset(m.step(ctx, work))
	}
}

// step does the work and what is due after it, and returns how long the loop may
// sleep then.
func (m *Monitor) step(ctx context.Context, work func()) time.Duration {
	pause := time.Duration(0)
	for _, f := range []func(){work, func() { m.startChecks(ctx) }, func() { m.publish(ctx, false) }} {
		if m.metrics.caught(klog.FromContext(ctx), func() error { f(); return nil }) != nil {
			pause = panicPause
		}
	}
	return max(pause, m.untilNext())
}

func (m *Monitor) untilNext() time.Duration {
	next, ok := m.tracker.next()
	if !ok {
		return idle
	}
	return max(0, next.Sub(m.cfg.Clock.Now()))
}

// drain takes all that the informers delivered. An item that panics is looked at
// again after the next sweep.
func (m *Monitor) drain(ctx context.Context, now time.Time) {
	for _, i := range m.inbox.take() {
		logger := klog.FromContext(ctx).WithValues("kind", i.kind, "object", klog.KRef(i.namespace, i.name))
		if m.metrics.caught(logger, func() error { m.take(ctx, i, now); return nil }) != nil {
			m.panicked[i] = struct{}{}
		}
	}
}

// take reads one object that has changed.
func (m *Monitor) take(ctx context.Context, i item, now time.Time) {
	switch i.kind {
	case kindPV:
		m.takePV(ctx, i, now)
	case kindClaim:
		m.retryPods(now)
	case kindPod:
		m.takePod(i, now)
	case kindVA:
		m.takeVA(i, now)
	case kindCSINode:
		m.takeCSINode(i.name, now)
	case kindLease:
		m.takeLease(i, now)
	}
}

// retryPanicked puts the items back that panicked.
func (m *Monitor) retryPanicked() {
	for i := range m.panicked {
		delete(m.panicked, i)
		m.inbox.put(i)
	}
}

// recall restores what an earlier process believed: conditions from the status
// of the claims, suspicions from the holds on the nodes.
func (m *Monitor) recall(ctx context.Context, now time.Time) {
	for name, handle := range m.volumes.handles {
		key := volume.Key{Handle: handle}
		claim := m.claimOf(name)
		if claim == nil || claim.Status.HealthStatus == nil || len(claim.Status.HealthStatus.HealthConditions) == 0 {
			continue
		}
		m.tracker.remember(key, conditionsOf(claim.Status.HealthStatus.HealthConditions), now)
		m.announcer.remember(m.tracker.entries[key].status(key))
	}
	for _, h := range m.holds(ctx, now) {
		m.tracker.recall(h.key, h.source, h.since, h.until)
	}
}

// publish makes a new snapshot where anything changed, and tells the world.
func (m *Monitor) publish(ctx context.Context, always bool) {
	changes := m.tracker.transitions()
	if len(changes) > 0 || always {
		s := m.tracker.snapshot()
		m.current.Store(s)
		select {
		case m.changed <- struct{}{}:
		default:
		}
		m.measure(s)
	}
	for _, change := range changes {
		m.report(ctx, change)
	}
	for _, change := range m.tracker.claimChanges() {
		if m.writer == nil {
			continue
		}
		for _, pv := range m.volumes.of(change.handle) {
			m.writer.want(pv, change.conditions, m.cfg.Clock.Now())
		}
	}
}

// report logs a transition and makes its event.
func (m *Monitor) report(ctx context.Context, change transition) {
	to := change.to
	if change.from.State != to.State || change.from.Confirmed != to.Confirmed || change.from.Waiting != to.Waiting || change.from.Suspect() != to.Suspect() {
		klog.FromContext(ctx).Info("Health of volume changed",
			"volumeHandle", to.Key.Handle, "node", to.Key.Node, "from", change.from.State, "to", to.State,
			"confirmed", to.Confirmed, "waitingFor", to.Waiting, "suspect", to.Suspect(), "source", to.Source,
			"reason", to.Reason, "message", truncate(to.Message, maxMessageBytes))
	}
	n, ok := m.announcer.noticeOf(change, m.cfg.Clock.Now())
	if !ok {
		return
	}
	var claims []*v1.PersistentVolumeClaim
	for _, pv := range m.volumes.of(to.Key.Handle) {
		if claim := m.claimOf(pv); claim != nil {
			claims = append(claims, claim)
		}
	}
	m.announcer.send(n, claims)
}

// measure sets the gauges from a snapshot.
func (m *Monitor) measure(s *snapshot) {
	counts := s.worstByState()
	rest := len(m.volumes.names)
	for _, state := range []volume.State{volume.StateDegraded, volume.StateInaccessible, volume.StateDataLoss} {
		m.metrics.volumes.WithLabelValues(string(state)).Set(float64(counts[state]))
		rest -= counts[state]
	}
	unknown := max(0, rest)
	if m.heard {
		unknown = min(unknown, m.unheard)
	}
	m.metrics.volumes.WithLabelValues(string(volume.StateUnknown)).Set(float64(unknown))
	m.metrics.volumes.WithLabelValues(string(volume.StateHealthy)).Set(float64(max(0, rest-unknown)))

	waiting := map[Waiting]int{}
	for i := range s.statuses {
		waiting[s.statuses[i].Waiting]++
	}
	for _, w := range []Waiting{WaitingForLease, WaitingForRead} {
		m.metrics.waiting.WithLabelValues(string(w)).Set(float64(waiting[w]))
	}
}
