package attach

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// reconcile holds the desired against the actual state, time and again, and
// queues what differs. Events of the API queue everything as it comes; this is for
// what was lost on the way, by a defect of ours or of a watch, and would otherwise
// be lost until the next leader. Who is in backoff or at work already is not
// disturbed by it.
func (c *Controller) reconcile(ctx context.Context) {
	if c.cfg.ResyncInterval == 0 || c.cfg.Trivial {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.cfg.Clock.After(c.cfg.ResyncInterval):
		}
		for _, k := range c.ledger.outOfStep() {
			klog.FromContext(ctx).V(2).Info("A volume is not as it should be, and is looked at again", "volume", k.Handle, "node", k.Node)
			c.enqueue(item{key: k}, false)
		}
	}
}

// outOfStep lists the keys whose states differ.
func (l *ledger) outOfStep() (keys []volume.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h, v := range l.volumes {
		for node, e := range v.keys {
			if e.outOfStep() {
				keys = append(keys, volume.Key{Handle: h, Node: node})
			}
		}
	}
	return keys
}
