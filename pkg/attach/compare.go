package attach

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// compare asks the driver, time and again, where its volumes are published, and
// mends what differs from the ledger.
func (c *Controller) compare(ctx context.Context) {
	if c.cfg.Evidence == nil || c.cfg.Trivial {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.cfg.Clock.After(c.cfg.EvidenceInterval):
		}
		if c.cfg.Capabilities().TellsPublished && c.mayAct() == nil {
			c.compareOnce(ctx)
		}
	}
}

func (c *Controller) compareOnce(ctx context.Context) {
	defer c.recovered(ctx, "comparing with the driver", func() {})
	began := c.cfg.Clock.Now()
	published, err := c.cfg.Evidence.Published(ctx, c.ledger.handles())
	if ctx.Err() != nil {
		return
	}
	c.metrics.compared(err)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot compare attachments with the driver")
		return
	}
	f := c.ledger.weigh(published, c.listedAs, began)
	requeue(f.wake)
	for _, key := range f.changed {
		klog.FromContext(ctx).Info("The driver lists a volume as detached, twice in a row", "volume", key.Handle, "node", key.Node, "state", c.ledger.state(key))
		c.metrics.repaired.Inc()
		c.enqueue(item{key: key}, true)
	}
	for _, key := range f.contradicted {
		c.contradict(ctx, key)
	}
	if !began.Before(c.ledger.holdOffUntil) {
		c.lookForOrphans(ctx, published)
	}
}

// contradict shows that publishing again does not make the driver list it.
func (c *Controller) contradict(ctx context.Context, key volume.Key) {
	const message = "The driver goes on to list the volume as not published to node %s, though ControllerPublishVolume has succeeded again %d times; it is taken for attached. Its ListVolumes may use other IDs than its calls"
	klog.FromContext(ctx).Info("The driver contradicts itself about where a volume is published", "volume", key.Handle, "node", key.Node)
	for _, va := range c.ledger.attachmentsOf(key) {
		c.tell(va, v1.EventTypeWarning, ReasonContradiction, fmt.Sprintf(message, key.Node, repairsAtMost))
	}
}
