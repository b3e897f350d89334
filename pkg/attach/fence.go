package attach

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Fence unpublishes the volume of a VolumeAttachment that carries a fence
// record, by the node ID recorded at publish, and returns nil only once the
// driver has acknowledged that. From then on the volume is not published to
// that node again before live reads show neither record nor hold, and its
// VolumeAttachment is released without another call when it is deleted.
//
// It waits for a call in flight for the volume to end, at most for its deadline;
// after a change of leader it also waits, for a key of the former leader, until
// that one's calls have ended: a publish of it could land after the fence. ctx
// bounds these waits; the call, once begun, goes on to its own deadline,
// Config.Timeout, though ctx ends. An error means that the node may still have
// the volume; the call may be made again.
func (c *Controller) Fence(ctx context.Context, va *storagev1.VolumeAttachment) error {
	if err := c.fence(ctx, va); err != nil {
		c.metrics.fence("error")
		if errors.Is(err, errNoNodeID) {
			c.tell(va, v1.EventTypeWarning, ReasonNodeIDUnknown, cut("Cannot fence: "+err.Error()))
		}
		return fmt.Errorf("fencing VolumeAttachment %s: %w", va.Name, err)
	}
	c.metrics.fence("ok")
	return nil
}

func (c *Controller) fence(ctx context.Context, va *storagev1.VolumeAttachment) error {
	switch {
	case c.cfg.Trivial:
		return errors.New("the driver cannot unpublish: it has no PUBLISH_UNPUBLISH_VOLUME")
	case va.Spec.Attacher != c.cfg.DriverName:
		return fmt.Errorf("it belongs to %s, not to %s", va.Spec.Attacher, c.cfg.DriverName)
	}
	if err := c.awaitRebuilt(ctx); err != nil {
		return err
	}
	res, err := c.resolve(va)
	if err != nil {
		return err
	}
	c.ledger.observeWrite(va)
	f := c.facts(res.key)
	f.exclusive = res.exclusive
	cl, err := c.ledger.claimForFence(ctx, res.key, f, c.cfg.Clock.Now, c.cfg.Clock.After)
	if err != nil {
		return err
	}
	// A key without a VolumeAttachment has nobody else to bring it to the lanes,
	// which are to forget it in time.
	defer c.enqueue(item{key: res.key}, false)
	defer cl.release()
	if cl.before == Fenced {
		return nil
	}
	return c.fenceClaimed(ctx, cl, va)
}

// fenceClaimed does the rest of a fence under its claim.
func (c *Controller) fenceClaimed(ctx context.Context, cl *claim, va *storagev1.VolumeAttachment) error {
	getCtx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	live, err := c.cfg.Client.StorageV1().VolumeAttachments().Get(getCtx, va.Name, getOptions)
	switch {
	case apierrors.IsNotFound(err):
		// Nobody asks for the volume there any more; the driver's word is
		// wanted nevertheless.
	case err != nil:
		return fmt.Errorf("reading it before the fence: %w", err)
	case live.UID != va.UID:
		return errors.New("it was deleted and made again; the new one is not fenced")
	case !volume.Fenced(live):
		return errors.New("it carries no fence record, so that it could be published again at once")
	default:
		c.ledger.observeWrite(live)
		va = live
	}
	// What the ledger knows is what this process or the API recorded last; for
	// a key that it holds to be absent the record is all there is.
	if cl.step.nodeID == "" || !cl.before.MayHold() {
		if recorded := va.Annotations[volume.AnnotationNodeID]; recorded != "" {
			cl.step.nodeID = recorded
		}
	}
	cl.step.fenced = true
	return c.unpublish(ctx, cl)
}

// awaitRebuilt waits until Run has rebuilt the ledger.
func (c *Controller) awaitRebuilt(ctx context.Context) error {
	select {
	case <-c.stopped:
		return errors.New("the attach controller has stopped")
	default:
	}
	select {
	case <-c.rebuilt:
		return nil
	case <-c.stopped:
		return errors.New("the attach controller has stopped")
	case <-ctx.Done():
		return fmt.Errorf("waiting for the attach controller to start: %w", context.Cause(ctx))
	}
}
