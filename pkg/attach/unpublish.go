package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// errNoNodeID: nothing tells by which ID the volume was published.
var errNoNodeID = errors.New("the node ID it was published with is not recorded on the VolumeAttachment and the node is not registered")

// unpublish makes the call by the node ID that the volume was published with,
// whatever has become of the Node, and notes in the ledger what it left behind.
// An error of any kind, NotFound included, leaves the finalizer where it is:
// CSI demands OK for a volume that is not published.
func (c *Controller) unpublish(ctx context.Context, cl *claim) error {
	s := cl.step
	nodeID := s.nodeID
	if nodeID == "" {
		nodeID = s.facts.nodeID
	}
	if nodeID == "" {
		return fmt.Errorf("volume on node %s: %w", s.key.Node, errNoNodeID)
	}
	req := &csi.ControllerUnpublishVolumeRequest{VolumeId: string(s.key.Handle), NodeId: nodeID}
	if err := c.unpublishSecrets(ctx, s.key, req); err != nil {
		return err
	}
	call, ended, err := c.startCall(ctx)
	if err != nil {
		return err
	}
	defer ended()
	call = c.marked(call, c.ledger.sourceFor(s.key))
	cl.begin(Unpublishing, nil)
	_, err = c.cfg.Driver.ControllerUnpublish(call, req)
	outcome := volume.OutcomeOf(err)
	after := AfterUnpublish(cl.before, outcome, s.fenced)
	metadata := s.metadata
	if !after.MayHold() {
		metadata = nil
	}
	cl.end(after, metadata, func(p *proof) { p.unpublished(err) })
	c.metrics.operation("unpublish", outcome)
	for _, key := range cl.doubtOthers(nodeID) {
		c.enqueue(item{key: key}, true)
	}
	if err != nil {
		return fmt.Errorf("unpublishing volume: %w", err)
	}
	return nil
}

// unpublishSecrets fills in the secret that the PersistentVolume names. Where
// the PersistentVolume is gone, the driver has to do without.
func (c *Controller) unpublishSecrets(ctx context.Context, k volume.Key, req *csi.ControllerUnpublishVolumeRequest) error {
	name := c.ledger.sourceFor(k)
	pv, err := c.source(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("reading volume %s: %w", name, err)
	case pv.Spec.CSI == nil || pv.Spec.CSI.VolumeHandle != string(k.Handle):
		return nil
	}
	req.Secrets, err = c.secrets(ctx, pv)
	return err
}

// handOver leaves the volume to another node that the driver knows by the same ID.
func (c *Controller) handOver(ctx context.Context, cl *claim) {
	s := cl.step
	klog.FromContext(ctx).Info("Not unpublishing a volume: it is attached to another node that has the same ID", "volume", s.key.Handle, "node", s.key.Node, "nodeID", s.nodeID)
	cl.end(Absent, nil, func(*proof) {})
}

// letGo carries out Release: the finalizer comes off, and if that was not the
// last one, the status is told that the volume is detached.
func (c *Controller) letGo(ctx context.Context, cl *claim) error {
	va := cl.step.va
	if !hasFinalizer(va.Finalizers, c.finalizer) {
		live, err := c.liveVA(ctx, va.Name, va.UID)
		if err != nil {
			return err
		}
		va = live
	}
	if hasFinalizer(va.Finalizers, c.finalizer) {
		got, err := c.patchVA(ctx, va, true, object{"finalizers": without(va.Finalizers, c.finalizer)}, nil)
		if err != nil {
			return fmt.Errorf("removing finalizer: %w", err)
		}
		va = got
	}
	if len(va.Finalizers) == 0 {
		c.ledger.setIntent(va.UID, false)
		c.ledger.vanished(va.UID)
		return nil
	}
	_, err := c.patchVA(ctx, va, false, nil, object{"attached": false, "detachError": nil, "attachmentMetadata": nil}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the volume is detached, but writing so failed: %w", err)
	}
	// Not before: it is what brings the status here again after a failure.
	c.ledger.setIntent(va.UID, false)
	return nil
}
