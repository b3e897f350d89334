package attach

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// ReasonDeletedInUse is the event on a VolumeAttachment that a person has deleted
// while a node that works uses the volume.
const ReasonDeletedInUse = "DeletedWhileInUse"

// guard knows the VolumeAttachments that are being deleted and have been looked
// at. kube-controller-manager takes a volume out of the Node's volumesAttached
// before it deletes the VolumeAttachment, and, unless the node has failed, waits
// until it is not in volumesInUse. Where a Ready node has it in both, somebody
// else has deleted it, and pods would lose the volume under their mounts.
type guard struct {
	mu   sync.Mutex
	seen map[types.UID]guarded
}

// guarded is one of them.
type guarded struct {
	key volume.Key
	// until is when it is detached at the latest; zero: nothing keeps it back.
	until time.Time
}

func (g *guard) find(uid types.UID) (guarded, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	x, ok := g.seen[uid]
	return x, ok
}

func (g *guard) note(uid types.UID, x guarded) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.seen == nil {
		g.seen = map[types.UID]guarded{}
	}
	g.seen[uid] = x
}

func (g *guard) forget(uid types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.seen, uid)
}

// kept lists the keys on a node that are kept back.
func (g *guard) kept(node string) (keys []volume.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, x := range g.seen {
		if x.key.Node == node && !x.until.IsZero() {
			keys = append(keys, x.key)
		}
	}
	return keys
}

// guardFor is how long the step is still to be kept back. It is never a fence's,
// which does not come this way, and never that of a VolumeAttachment with a record.
func (c *Controller) guardFor(ctx context.Context, s step) time.Duration {
	if s.Kind != Unpublish || s.va == nil || s.va.DeletionTimestamp == nil || s.fenced {
		return 0
	}
	x, seen := c.guard.find(s.va.UID)
	if !seen {
		x = guarded{key: s.key}
		if c.usedByListed(s.key) && c.usedByLive(ctx, s.key) {
			x.until = c.deletedInUse(ctx, s)
		}
	} else if !c.usedByListed(s.key) {
		x.until = time.Time{}
	}
	left := x.until.Sub(c.cfg.Clock.Now())
	if left <= 0 {
		x.until = time.Time{}
	}
	c.guard.note(s.va.UID, x)
	return max(left, 0)
}

// deletedInUse tells of it, and until when it is kept back: what a former leader
// has waited counts.
func (c *Controller) deletedInUse(ctx context.Context, s step) (until time.Time) {
	delay, now := c.cfg.ManualDetachDelay, c.cfg.Clock.Now()
	if delay > 0 {
		delay -= min(max(now.Sub(s.va.DeletionTimestamp.Time), 0), delay)
	}
	next := "under them now: do not delete VolumeAttachments by hand, or leave time to stop the pods by --manual-detach-delay"
	if delay > 0 {
		next = fmt.Sprintf("within %v: stop the pods that use it there, and it is detached as soon as the node has unmounted it", delay.Round(time.Second))
		c.metrics.heldBack("use")
	}
	c.tell(s.va, v1.EventTypeWarning, ReasonDeletedInUse, fmt.Sprintf("Deleted by hand: node %s is Ready and uses the volume, and Kubernetes itself would have waited for the unmount. It is detached %s", s.key.Node, next))
	klog.FromContext(ctx).Info("A VolumeAttachment was deleted while a Ready node uses the volume", "volumeAttachment", klog.KObj(s.va), "volume", s.key.Handle, "node", s.key.Node, "detachedWithin", delay)
	return now.Add(delay)
}

func (c *Controller) usedByListed(k volume.Key) bool {
	node, err := c.nodes.Get(k.Node)
	return err == nil && c.uses(node, k.Handle)
}

// usedByLive reads the Node: the informer may not have seen yet what
// kube-controller-manager wrote before it deleted the VolumeAttachment.
func (c *Controller) usedByLive(ctx context.Context, k volume.Key) bool {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	node, err := c.cfg.Client.CoreV1().Nodes().Get(ctx, k.Node, getOptions)
	return err == nil && c.uses(node, k.Handle)
}

// uses reports whether the node works and has the volume, attached and in use.
func (c *Controller) uses(node *v1.Node, h volume.Handle) bool {
	name := volume.UniqueName(c.cfg.DriverName, h)
	outOfService := func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService }
	attached := func(a v1.AttachedVolume) bool { return a.Name == name }
	return kube.VolumeInUse(node, name) && slices.ContainsFunc(node.Status.VolumesAttached, attached) &&
		kube.NodeReady(node) && !slices.ContainsFunc(node.Spec.Taints, outOfService)
}

// wakeKept brings back what was kept back for a node that does not use it any
// more; a nil one is gone.
func (c *Controller) wakeKept(name string, node *v1.Node) {
	for _, k := range c.guard.kept(name) {
		if node == nil || !c.uses(node, k.Handle) {
			c.enqueue(item{key: k}, false)
		}
	}
}
