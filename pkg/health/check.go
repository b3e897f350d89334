package health

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// A check waits for those of other pods, on any node, that become due within
// checkGap of one another, checkTogether at most.
const (
	checkGap      = 300 * time.Millisecond
	checkTogether = time.Second
)

// waitingChecks are due, the first of them since a time.
type waitingChecks struct {
	since  time.Time
	checks []check
}

// until is up to which time what becomes due is waited for.
func (w waitingChecks) until(now time.Time) time.Time {
	if last := w.since.Add(checkTogether); last.Before(now.Add(checkGap)) {
		return last
	}
	return now.Add(checkGap)
}

// readTimeout bounds one live read.
const readTimeout = 5 * time.Second

// read is one live read and the checks that it is for; it answers each of them.
type read struct {
	checks []check
	do     func(context.Context) ([][]volume.Reading, error)
}

// answered is what came of a read.
type answered struct {
	read    read
	answers []answer
}

// startChecks lets the tracker do what is due, and makes the live reads it asks
// for beside the loop. Where the Lease is stale there is nothing to read.
func (m *Monitor) startChecks(ctx context.Context) {
	now := m.cfg.Clock.Now()
	for _, c := range m.tracker.tick(now) {
		switch {
		case !m.leases.fresh(c.node, now):
			m.metrics.checks.WithLabelValues("lease-stale").Inc()
			m.tracker.verify(answer{check: c, leaseStale: true}, now)
		case c.origin.source == volume.SourceCSINodeStatus:
			m.start(ctx, read{[]check{c}, m.reader(c)})
		default:
			w := m.podChecks[c.node]
			if len(w.checks) == 0 {
				w.since = now
			}
			w.checks = append(w.checks, c)
			m.podChecks[c.node] = w
		}
	}
	m.startPodChecks(ctx)
}

// startPodChecks makes one read at a time for each node. What becomes due
// meanwhile, or very soon, shares the next: the pods of a node often fail
// together, a list costs the API server little more than one of them, and what is
// decided about all of them at once is decided better and moved sooner. Nodes that
// fail together wait for each other too: what the cluster does about the pods of
// the first would hold up the second.
func (m *Monitor) startPodChecks(ctx context.Context) {
	now := m.cfg.Clock.Now()
	for node, w := range m.podChecks {
		if m.podReads[node] || m.tracker.podsDueUntil(now, w.until(now)) {
			continue // the loop comes back for these, whatever becomes of them
		}
		checks := w.checks
		delete(m.podChecks, node)
		m.podReads[node] = true
		do := m.reader(checks[0])
		if len(checks) > 1 {
			do = func(ctx context.Context) ([][]volume.Reading, error) { return m.readPodsOf(ctx, node, checks) }
		}
		m.start(ctx, read{checks, do})
	}
}

// start makes a read when there is room for it, and hands its answers to the
// loop, all at once.
func (m *Monitor) start(ctx context.Context, r read) {
	m.inFlight.Go(func() {
		select {
		case m.reading <- struct{}{}:
		case <-ctx.Done():
			return
		}
		readings := make([][]volume.Reading, len(r.checks))
		err := m.metrics.caught(klog.FromContext(ctx), func() error {
			got, err := r.do(ctx)
			copy(readings, got)
			return err
		})
		<-m.reading
		out := answered{read: r}
		for i, c := range r.checks {
			out.answers = append(out.answers, answer{check: c, readings: readings[i], err: err})
		}
		select {
		case m.answers <- out:
		case <-ctx.Done():
		}
	})
}

// takeAnswers ends a read.
func (m *Monitor) takeAnswers(ctx context.Context, a answered) {
	if c := a.read.checks[0]; c.origin.source != volume.SourceCSINodeStatus {
		delete(m.podReads, c.node)
	}
	for _, answer := range a.answers {
		m.takeAnswer(ctx, answer)
	}
}

// takeAnswer hands a live read to the tracker. The Lease is looked at once
// more: it may have grown stale meanwhile.
func (m *Monitor) takeAnswer(ctx context.Context, a answer) {
	now := m.cfg.Clock.Now()
	if a.err != nil {
		m.metrics.checks.WithLabelValues("failed").Inc()
		klog.FromContext(ctx).Error(a.err, "Checking a health status failed, trying again", "node", a.check.node, "source", a.check.origin.source)
	} else {
		m.metrics.checks.WithLabelValues("read").Inc()
	}
	a.leaseStale = !m.leases.fresh(a.check.node, now)
	m.tracker.verify(a, now)
}

// reader makes the live read of one check. What it needs of the loop's state is
// copied here, in the loop.
func (m *Monitor) reader(c check) func(context.Context) ([][]volume.Reading, error) {
	if c.origin.source == volume.SourceCSINodeStatus {
		attached := m.onNode(c.node)
		return func(ctx context.Context) ([][]volume.Reading, error) {
			readings, err := m.readCSINode(ctx, c.node, attached)
			return [][]volume.Reading{readings}, err
		}
	}
	uid := types.UID(c.origin.object)
	name := m.podNames[uid]
	return func(ctx context.Context) ([][]volume.Reading, error) {
		readings, err := m.readPod(ctx, name, uid)
		return [][]volume.Reading{readings}, err
	}
}

// readPod reads the pod from the API server. A pod that is gone, or another one
// of the same name, says nothing.
func (m *Monitor) readPod(ctx context.Context, name types.NamespacedName, uid types.UID) ([]volume.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pod, err := m.cfg.Client.CoreV1().Pods(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading pod %s: %w", name, err)
	case pod.UID != uid:
		return nil, nil
	}
	readings, _ := podReadings(m.cfg.DriverName, pod, m, m.cfg.Clock.Now())
	return readings, nil
}

// readPodsOf reads all pods of a node for the checks, which are of pods there. One
// that is not in the list is gone and says nothing.
func (m *Monitor) readPodsOf(ctx context.Context, node string, checks []check) ([][]volume.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	list, err := m.cfg.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	byUID := make(map[string]*v1.Pod, len(list.Items))
	for i := range list.Items {
		byUID[string(list.Items[i].UID)] = &list.Items[i]
	}
	readings := make([][]volume.Reading, len(checks))
	for i, c := range checks {
		if pod := byUID[c.origin.object]; pod != nil {
			readings[i], _ = podReadings(m.cfg.DriverName, pod, m, m.cfg.Clock.Now())
		}
	}
	return readings, nil
}

func (m *Monitor) readCSINode(ctx context.Context, node string, attached []onNode) ([]volume.Reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	csiNode, err := m.cfg.Client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading CSINode %s: %w", node, err)
	}
	return csiNodeReadings(m.cfg.DriverName, csiNode, attached, m.cfg.Clock.Now()), nil
}
