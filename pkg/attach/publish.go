package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

var (
	// errChanged: there is another picture by now than the decision was made by;
	// ledger and listers have it, and it is decided anew.
	errChanged = errors.New("the VolumeAttachment or its node has changed")
	// errHeld: the Node is held, and the informer does not know it yet.
	errHeld = errors.New("the Node is held for this volume")
)

// publish carries out Publish and Republish: intent, call, commit.
func (c *Controller) publish(ctx context.Context, cl *claim) error {
	if c.draining() {
		return errDraining // an intent without a call would only hold the next leader off
	}
	s := cl.step
	pv, err := c.attachablePV(s)
	if err != nil {
		return err
	}
	if c.resolveUsers(pv) {
		return errChanged
	}
	nodeID, err := c.nodeID(s.key.Node)
	if err != nil {
		return err
	}
	if nodeID != s.facts.nodeID {
		return errChanged // another one than the decision was made by, which may forbid it
	}
	req, err := c.publishRequest(ctx, pv, nodeID)
	if err != nil {
		return err
	}
	if err := c.protectPV(ctx, pv); err != nil {
		return err
	}
	va, err := c.intend(ctx, s, nodeID)
	if err != nil {
		return err
	}
	metadata, err := c.callPublish(ctx, cl, req)
	if err != nil {
		return err
	}
	if err := c.commit(ctx, va, metadata); err != nil {
		return fmt.Errorf("the volume is attached, but writing so failed: %w", err)
	}
	return nil
}

// attachablePV is the PersistentVolume of a VolumeAttachment that is to be attached.
func (c *Controller) attachablePV(s step) (*v1.PersistentVolume, error) {
	pv, err := c.sourceOf(s.va)
	if err != nil {
		return nil, fmt.Errorf("reading what is to be attached: %w", err)
	}
	if err := c.ours(pv); err != nil {
		return nil, err
	}
	if pv.DeletionTimestamp != nil {
		return nil, fmt.Errorf("PersistentVolume %s is being deleted", pv.Name)
	}
	if pv.Spec.CSI.VolumeHandle != string(s.key.Handle) {
		return nil, fmt.Errorf("PersistentVolume %s was made again for another volume", pv.Name)
	}
	return pv, nil
}

// resolveUsers takes in the VolumeAttachments of a PersistentVolume that came
// before it did: one of them may have the volume on another node. It reports
// whether there were any.
func (c *Controller) resolveUsers(pv *v1.PersistentVolume) (found bool) {
	for _, uid := range c.ledger.usersOf(pv.Name) {
		va, _, resolved, ok := c.ledger.lookup(uid)
		if !ok || resolved {
			continue
		}
		if res, err := c.resolve(va); err == nil {
			c.ledger.observe(va, res)
			c.enqueue(item{key: res.key}, true)
			found = true
		}
	}
	return found
}

// protectPV keeps the PersistentVolume, and with it handle and secret, for as
// long as a VolumeAttachment may need it.
func (c *Controller) protectPV(ctx context.Context, pv *v1.PersistentVolume) error {
	if isInline(pv) || hasFinalizer(pv.Finalizers, c.finalizer) {
		return nil
	}
	err := c.patchPVFinalizers(ctx, pv, append(append([]string{}, pv.Finalizers...), c.finalizer))
	if apierrors.IsConflict(err) {
		err = c.protectLivePV(ctx, pv)
	}
	if err != nil {
		return fmt.Errorf("writing finalizer on PersistentVolume %s: %w", pv.Name, err)
	}
	return nil
}

// protectLivePV does the same by a live read, where the informer lags behind.
func (c *Controller) protectLivePV(ctx context.Context, pv *v1.PersistentVolume) error {
	getCtx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	live, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(getCtx, pv.Name, getOptions)
	switch {
	case err != nil:
		return err
	case live.UID != pv.UID || live.DeletionTimestamp != nil:
		return errors.New("it was deleted")
	case hasFinalizer(live.Finalizers, c.finalizer):
		return nil
	}
	return c.patchPVFinalizers(ctx, live, append(append([]string{}, live.Finalizers...), c.finalizer))
}

// intend makes sure that finalizer and node ID are on the live VolumeAttachment
// and that nothing forbids publishing it. Where a write of the intent does not
// prove that, live reads do.
func (c *Controller) intend(ctx context.Context, s step, nodeID string) (*storagev1.VolumeAttachment, error) {
	va := s.va
	again := s.Kind == Republish || c.hasIntent(va, nodeID, s.key.Handle)
	if again {
		live, err := c.liveVA(ctx, va.Name, va.UID)
		if err != nil {
			return nil, err
		}
		if live.DeletionTimestamp != nil || volume.Fenced(live) {
			return nil, errChanged
		}
		va = live
	}
	// The first publish onto a node since this process leads as well: the
	// informer may not have the last hold of a former leader yet.
	if again || !c.ledger.holdKnown(s.key.Node) {
		held, err := c.liveHold(ctx, s.key)
		if err != nil {
			return nil, err
		}
		if held {
			return nil, errHeld
		}
	}
	if c.hasIntent(va, nodeID, s.key.Handle) {
		return va, nil
	}
	return c.writeIntent(ctx, va, nodeID, s.key.Handle)
}

// callPublish makes the call and notes in the ledger what it left behind. The
// publish context is the driver's answer.
func (c *Controller) callPublish(ctx context.Context, cl *claim, req *csi.ControllerPublishVolumeRequest) (map[string]string, error) {
	call, ended, err := c.startCall(ctx)
	if err != nil {
		return nil, err
	}
	defer ended()
	cl.begin(Publishing, func(e *keyEntry) {
		e.nodeID, e.source, e.exclusive = req.NodeId, sourceName(cl.step.va), e.exclusive || cl.step.facts.exclusive
	})
	resp, err := c.cfg.Driver.ControllerPublish(c.marked(call, sourceName(cl.step.va)), req)
	outcome := volume.OutcomeOf(err)
	cl.end(AfterPublish(cl.before, outcome), resp.GetPublishContext(), func(p *proof) { p.published(outcome) })
	c.metrics.operation("publish", outcome)
	if err != nil {
		return nil, fmt.Errorf("publishing volume: %w", err)
	}
	return resp.GetPublishContext(), nil
}

// adopt carries out Commit: the volume is attached, and the VolumeAttachment is
// to say so, durably.
func (c *Controller) adopt(ctx context.Context, cl *claim) error {
	s := cl.step
	va := s.va
	nodeID := s.nodeID
	if nodeID == "" && !hasFinalizer(va.Finalizers, c.finalizer) {
		if nodeID = s.facts.nodeID; nodeID == "" {
			return fmt.Errorf("volume on node %s: %w", s.key.Node, errNoNodeID)
		}
	}
	if nodeID != "" && !c.hasIntent(va, nodeID, s.key.Handle) {
		var err error
		if va, err = c.writeIntent(ctx, va, nodeID, s.key.Handle); err != nil {
			return err
		}
	}
	if s.exclusive {
		cl.exclude()
	}
	if va.Status.Attached {
		return nil
	}
	if err := c.commit(ctx, va, s.metadata); err != nil {
		return fmt.Errorf("the volume is attached, but writing so failed: %w", err)
	}
	return nil
}

// isNotFoundVA reports whether the error says that the VolumeAttachment is gone.
func isNotFoundVA(err error) bool {
	var st apierrors.APIStatus
	if !errors.As(err, &st) || !apierrors.IsNotFound(err) {
		return false
	}
	d := st.Status().Details
	return d != nil && d.Kind == storagev1.Resource("volumeattachments").Resource
}
