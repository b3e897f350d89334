package health

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// readTimeout bounds one live read.
const readTimeout = 5 * time.Second

// listFrom is from how many pods of a node on one list is cheaper for the API
// server than reading each.
const listFrom = 4

// read is one live read and the checks that it is for; it answers each of them.
type read struct {
	checks []check
	do     func(context.Context) ([][]volume.Reading, error)
}

// startChecks lets the tracker do what is due, and makes the live reads it asks
// for beside the loop. Where the Lease is stale there is nothing to read.
func (m *Monitor) startChecks(ctx context.Context) {
	now := m.cfg.Clock.Now()
	var due []check
	for _, c := range m.tracker.tick(now) {
		if !m.leases.fresh(c.node, now) {
			m.metrics.checks.WithLabelValues("lease-stale").Inc()
			m.tracker.verify(answer{check: c, leaseStale: true}, now)
			continue
		}
		due = append(due, c)
	}
	for _, r := range m.reads(due) {
		m.inFlight.Go(func() { m.check(ctx, r) })
	}
}

// check makes a read when there is room for it, and hands its answers to the loop.
func (m *Monitor) check(ctx context.Context, r read) {
	select {
	case m.reading <- struct{}{}:
	case <-ctx.Done():
		return
	}
	readings := make([][]volume.Reading, len(r.checks))
	err := m.metrics.caught(klog.FromContext(ctx), func() (err error) {
		got, err := r.do(ctx)
		copy(readings, got)
		return err
	})
	<-m.reading
	answers := make([]answer, len(r.checks))
	for i, c := range r.checks {
		answers[i] = answer{check: c, readings: readings[i], err: err}
	}
	select {
	case m.answers <- answers: // together: one verdict at a time would be looked at one at a time
	case <-ctx.Done():
	}
}

// reads says how to make the checks: each by itself, but many pods of one node,
// which often fail together, by one list.
func (m *Monitor) reads(due []check) []read {
	var reads []read
	pods := map[string][]check{}
	for _, c := range due {
		if c.origin.source == volume.SourceCSINodeStatus {
			reads = append(reads, m.single(c))
		} else {
			pods[c.node] = append(pods[c.node], c)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(pods)) {
		checks := pods[node]
		if len(checks) >= listFrom {
			reads = append(reads, read{checks, func(ctx context.Context) ([][]volume.Reading, error) {
				return m.readPodsOf(ctx, node, checks)
			}})
			continue
		}
		for _, c := range checks {
			reads = append(reads, m.single(c))
		}
	}
	return reads
}

func (m *Monitor) single(c check) read {
	one := m.reader(c)
	return read{[]check{c}, func(ctx context.Context) ([][]volume.Reading, error) {
		readings, err := one(ctx)
		return [][]volume.Reading{readings}, err
	}}
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

// reader makes the live read of a check. What it needs of the loop's state is
// copied here, in the loop.
func (m *Monitor) reader(c check) func(context.Context) ([]volume.Reading, error) {
	if c.origin.source == volume.SourceCSINodeStatus {
		attached := m.onNode(c.node)
		return func(ctx context.Context) ([]volume.Reading, error) {
			return m.readCSINode(ctx, c.node, attached)
		}
	}
	uid := types.UID(c.origin.object)
	name := m.podNames[uid]
	return func(ctx context.Context) ([]volume.Reading, error) {
		return m.readPod(ctx, name, uid)
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
