package health

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// readTimeout bounds one live read.
const readTimeout = 5 * time.Second

// startChecks lets the tracker do what is due, and makes the live reads it asks
// for beside the loop. Where the Lease is stale there is nothing to read.
func (m *Monitor) startChecks(ctx context.Context) {
	now := m.cfg.Clock.Now()
	for _, c := range m.tracker.tick(now) {
		if !m.leases.fresh(c.node, now) {
			m.metrics.checks.WithLabelValues("lease-stale").Inc()
			m.tracker.verify(answer{check: c, leaseStale: true}, now)
			continue
		}
		read := m.reader(c)
		m.inFlight.Go(func() {
			select {
			case m.reading <- struct{}{}:
			case <-ctx.Done():
				return
			}
			var readings []volume.Reading
			err := m.metrics.caught(klog.FromContext(ctx), func() (err error) {
				readings, err = read(ctx)
				return err
			})
			<-m.reading
			select {
			case m.answers <- answer{check: c, readings: readings, err: err}:
			case <-ctx.Done():
			}
		})
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
