package attach

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// fieldManager is the name under which the API server keeps what we write.
const fieldManager = "ha-sidecar"

// ReasonForeignAttacher is the event on a VolumeAttachment that somebody else
// works on.
const ReasonForeignAttacher = "ForeignAttacher"

// suspect notes that a VolumeAttachment which was known without our finalizer has
// it now, and this process did not write it: an external-attacher without leader
// election may be at work beside us. Informers call it, so that it does not wait.
func (c *Controller) suspect(va *storagev1.VolumeAttachment) {
	select {
	case c.suspects <- va:
	default: // One is looked at already.
	}
}

// awaitForeigner returns once another attacher was found at work, with what there
// is to do about it, or nil when ctx ends. Two attachers know nothing of each
// other's calls, so that either may publish what the other is about to unpublish.
func (c *Controller) awaitForeigner(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case va := <-c.suspects:
			if c.mayAct() != nil || c.cfg.Clock.Now().Before(c.ledger.holdOffUntil) {
				continue // a leader before or after us
			}
			live, err := c.liveVA(ctx, va.Name, va.UID)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Cannot look at who wrote a VolumeAttachment", "volumeAttachment", klog.KObj(va), "reason", err.Error())
				continue
			}
			if name := c.foreignManager(live); name != "" {
				message := fmt.Sprintf("another attacher for %s is at work: %q wrote finalizer and node ID of this VolumeAttachment; ha-sidecar stops, so that not both call the driver: remove the other one, or run ha-sidecar with --controllers=-attacher", c.cfg.DriverName, name)
				c.tell(live, v1.EventTypeWarning, ReasonForeignAttacher, cut(message))
				return fmt.Errorf("VolumeAttachment %s: %s", live.Name, message)
			}
		}
	}
}

// foreignManager is who else wrote both finalizer and node ID, as an attacher
// does in one write and no person by hand; "" for nobody.
func (c *Controller) foreignManager(va *storagev1.VolumeAttachment) string {
	finalizer := strconv.Quote("v:" + strconv.Quote(c.finalizer))
	nodeID := `"f:` + volume.AnnotationNodeID + `"`
	for _, e := range va.ManagedFields {
		if e.Manager == fieldManager || e.FieldsV1 == nil {
			continue
		}
		if fields := e.FieldsV1.GetRawString(); strings.Contains(fields, finalizer) && strings.Contains(fields, nodeID) {
			return e.Manager
		}
	}
	return ""
}
