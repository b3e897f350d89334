package attach

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// maxSteps bounds the steps that an item takes in one go; a key needs three at
// most (unpublish, publish, commit), and conflicts come on top.
const maxSteps = 8

// worker takes items from a lane until it is shut down.
func (c *Controller) worker(ctx context.Context, l *lane) {
	for {
		it, ok := l.get()
		if !ok {
			return
		}
		c.process(ctx, l, it)
	}
}

// process works on one item. A panic in it is caught and backs the item off:
// one bad object must not stop the others.
func (c *Controller) process(ctx context.Context, l *lane, it item) {
	defer l.done(it)
	defer c.recovered(ctx, "working on an item", func() { c.lanes.fail(l, it, c.cfg.RetryIntervalMax) })
	// A lane that is shut down still hands out what it holds.
	if ctx.Err() != nil || c.draining() {
		return
	}
	switch {
	case it.pv != "":
		c.workPV(ctx, it)
	case it.uid != "":
		c.workAttachment(ctx, it)
	default:
		c.workKey(ctx, l, it)
	}
}

// recovered is deferred: it catches a panic, shows it, and does what follows.
func (c *Controller) recovered(ctx context.Context, during string, then func()) {
	if r := recover(); r != nil {
		c.metrics.panicked()
		klog.FromContext(ctx).Error(fmt.Errorf("panic: %v", r), "Panicked", "during", during, "stack", string(debug.Stack()))
		then()
	}
}

// workKey takes a key as far as it goes: until there is nothing to do, something
// to wait for, or a failure.
func (c *Controller) workKey(ctx context.Context, l *lane, it item) {
	for range maxSteps {
		s, cl, handed := c.nextStep(ctx, l, it)
		if handed {
			return
		}
		if s.Kind.Waits() {
			c.await(ctx, l, it, s)
			return
		}
		err := c.carryOut(ctx, cl)
		if err != nil && !c.mend(ctx, s, err) {
			c.fail(ctx, it, s, err)
			return
		}
		if err == nil {
			c.lanes.forget(it)
			if s.Kind.Detaches() && !c.Holds(it.key.Handle) {
				c.cfg.Released(it.key.Handle)
			}
		}
	}
	c.lanes.fail(l, it, c.cfg.RetryIntervalMax)
}

// laneOf is where a step of that kind belongs.
func (c *Controller) laneOf(k Kind) *lane {
	if k.Detaches() {
		return c.lanes.detach
	}
	return c.lanes.attach
}

// nextStep decides and claims. Work of the other lane is handed over, and so is
// to the clock what the guard keeps back.
func (c *Controller) nextStep(ctx context.Context, l *lane, it item) (s step, cl *claim, handed bool) {
	s, cl = c.ledger.next(it.key, c.facts(it.key), parked{lane: l, item: it}, c.cfg.Clock.Now())
	if cl == nil {
		return s, nil, false
	}
	if right := c.laneOf(s.Kind); l != right && l != right.retry {
		cl.release()
		c.lanes.add(right, it)
		return s, nil, true
	}
	if wait := c.guardFor(ctx, s); wait > 0 {
		cl.release()
		l.addAfter(it, wait)
		return s, nil, true
	}
	return s, cl, false
}

// carryOut does one step under its claim.
func (c *Controller) carryOut(ctx context.Context, cl *claim) error {
	defer cl.release()
	switch cl.step.Kind {
	case Publish, Republish:
		return c.publish(ctx, cl)
	case Commit:
		return c.adopt(ctx, cl)
	case Unpublish:
		return c.unpublish(ctx, cl)
	case HandOver:
		c.handOver(ctx, cl)
		return nil
	case Release:
		return c.letGo(ctx, cl)
	default:
		return fmt.Errorf("no way to carry out %s", cl.step.Kind)
	}
}

// await leaves the item to what will wake it, and shows why where a person may
// wonder.
func (c *Controller) await(ctx context.Context, l *lane, it item, s step) {
	switch s.Kind {
	case AwaitDetach:
		message := fmt.Sprintf("Waiting for detach from node %s: the volume may be on one node only", s.Node)
		if s.va != nil && c.tell(s.va, v1.EventTypeNormal, ReasonWaitingForDetach, message) {
			c.metrics.heldBack("detach")
			klog.FromContext(ctx).Info("Waiting for detach from another node", "volumeAttachment", klog.KObj(s.va), "volume", s.key.Handle, "node", s.key.Node, "otherNode", s.Node)
		}
	case AwaitNode:
		message := fmt.Sprintf("Node %s is held (annotation %s): it may still have the volume mounted from before a fence", s.key.Node, volume.HoldKey(c.cfg.DriverName))
		if s.va != nil && c.tell(s.va, v1.EventTypeNormal, ReasonNodeHeld, message) {
			c.metrics.heldBack("node")
			klog.FromContext(ctx).Info("Waiting for a node's hold to be lifted", "volumeAttachment", klog.KObj(s.va), "volume", s.key.Handle, "node", s.key.Node)
		}
	case AwaitRecord:
		if s.wait > 0 {
			c.lanes.forget(it)
			l.addAfter(it, s.wait)
			return
		}
		c.reportRecord(ctx, it, s)
	case AwaitHoldOff:
		l.addAfter(it, s.wait)
	case Nothing:
		c.lanes.forget(it)
		if s.wait > 0 {
			l.addAfter(it, s.wait)
		}
	}
}

// reportRecord shows that a fence record has kept a VolumeAttachment back for long.
func (c *Controller) reportRecord(ctx context.Context, it item, s step) {
	err := recordError(s.va)
	news, unwritten := c.report(ctx, s.va, false, err)
	if unwritten != nil {
		c.lanes.fail(c.lanes.attach, it, c.cfg.RetryIntervalMax)
		return
	}
	c.lanes.forget(it)
	if news {
		c.metrics.heldBack("record")
		klog.FromContext(ctx).Info("A fence record keeps a volume from being attached", "volumeAttachment", klog.KObj(s.va), "volume", s.key.Handle, "node", s.key.Node, "reason", err.Error())
	}
}

// mend answers errors that only say that the world has moved on: the ledger is
// brought up to date, and the key decided anew.
func (c *Controller) mend(ctx context.Context, s step, err error) bool {
	switch {
	case s.va == nil:
		return false
	case errors.Is(err, errChanged):
		return true
	case isNotFoundVA(err):
		c.ledger.vanished(s.va.UID)
		return true
	case apierrors.IsConflict(err):
		_, lerr := c.liveVA(ctx, s.va.Name, s.va.UID)
		if isNotFoundVA(lerr) {
			c.ledger.vanished(s.va.UID)
			return true
		}
		return lerr == nil
	default:
		return false
	}
}

// fail backs the item off and shows the error.
func (c *Controller) fail(ctx context.Context, it item, s step, err error) {
	defer func() { c.lanes.fail(c.laneOf(s.Kind), it, c.retryLimit(err)) }()
	if errors.Is(err, errNotLeader) || errors.Is(err, errDraining) || ctx.Err() != nil {
		return
	}
	klog.FromContext(ctx).Error(err, "Failed to reconcile an attachment", "step", s.Kind, "volume", s.key.Handle, "node", s.key.Node, "failures", c.lanes.failed(it)+1)
	if s.va == nil || errors.Is(err, errHeld) || c.passing(it, err) {
		return
	}
	if va, _, _, ok := c.ledger.lookup(s.va.UID); ok {
		_, _ = c.report(ctx, va, s.Kind.Detaches() && va.DeletionTimestamp != nil, err) // the next attempt reports it again
	}
}

// retryLimit is the longest backoff after an error. Nobody tells when a secret
// appears, since secrets are not watched.
func (c *Controller) retryLimit(err error) time.Duration {
	if errors.Is(err, errNoSecret) {
		return secretRetryMax
	}
	return c.cfg.RetryIntervalMax
}

// passing reports whether an error may well be gone at the next attempt, and so
// is not shown at the first: kube-controller-manager answers each attachError by
// a backoff of its own, of up to two minutes, and would see the success late.
// ResourceExhausted is never held back, since the kubelet acts on it.
func (c *Controller) passing(it item, err error) bool {
	if c.lanes.failed(it) > 0 {
		return false
	}
	if apierrors.IsConflict(err) {
		return true
	}
	code, ok := codeOf(err)
	if !ok {
		return false
	}
	return code == codes.Aborted || code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled
}

// workAttachment is for VolumeAttachments without a known key.
func (c *Controller) workAttachment(ctx context.Context, it item) {
	va, key, resolved, ok := c.ledger.lookup(it.uid)
	switch {
	case !ok:
		c.lanes.forget(it)
	case c.cfg.Trivial:
		c.workTrivial(ctx, it, va)
	case resolved:
		c.enqueue(item{key: key}, false)
	default:
		c.workUnresolved(ctx, it, va)
	}
}

// workUnresolved shows why nothing can be done. Once that is written, it is not
// tried again before the PersistentVolume changes.
func (c *Controller) workUnresolved(ctx context.Context, it item, va *storagev1.VolumeAttachment) {
	res, err := c.resolve(va)
	if err == nil {
		c.lanes.forget(it)
		c.ledger.observe(va, res)
		c.enqueue(item{key: res.key}, true)
		return
	}
	deleting := va.DeletionTimestamp != nil
	if deleting && !hasFinalizer(va.Finalizers, c.finalizer) || c.mayAct() != nil {
		c.lanes.forget(it)
		return
	}
	klog.FromContext(ctx).Info("Cannot tell which volume a VolumeAttachment is for", "volumeAttachment", klog.KObj(va), "reason", err.Error())
	if _, unwritten := c.report(ctx, va, deleting, err); unwritten != nil {
		c.lanes.fail(c.lanes.attach, it, c.cfg.RetryIntervalMax)
		return
	}
	c.lanes.forget(it)
}
