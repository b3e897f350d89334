package capacity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/runner"
)

var errNotLeader = errors.New("this process does not hold the lease")

// resting is the error of an item that needs a verb which was refused.
type resting struct {
	verb string
	wait time.Duration
}

func (r *resting) Error() string {
	return fmt.Sprintf("%s was refused, trying again in %v", r.verb, r.wait)
}

// worker works on one item after the other.
func (c *Controller) worker(ctx context.Context, queue workqueue.TypedDelayingInterface[item]) {
	for {
		it, ok := c.backlog.get(queue)
		if !ok {
			return
		}
		c.process(ctx, it)
		queue.Done(it)
	}
}

// process works on an item and decides when to look at it again.
func (c *Controller) process(ctx context.Context, it item) {
	if ctx.Err() != nil {
		return
	}
	logger := klog.FromContext(ctx).WithValues("segment", it.segment, "storageClass", it.class)
	var wanted, first bool
	err := c.caught(logger, func() (err error) {
		wanted, first, err = c.sync(klog.NewContext(ctx, logger), it)
		return err
	})
	if err == nil {
		c.access.needsNothing(it)
	}
	var rest *resting
	switch {
	case ctx.Err() != nil:
	case err == nil && wanted:
		c.backlog.settled(it, first)
	case err == nil:
		c.backlog.drop(it)
	case errors.As(err, &rest):
		c.access.waits(it, rest.verb)
		// Never before its time: it would be back again and again.
		c.backlog.addAfter(it, rest.wait+around(c.cfg.RetryIntervalStart))
	case c.backlog.fail(it) == 1 && !apierrors.IsConflict(err) && !errors.Is(err, errNotLeader):
		logger.Error(err, "Failed to tell the scheduler of free capacity, its last word stands; trying again")
	default:
		logger.V(2).Info("Failed again to tell the scheduler of free capacity", "err", err)
	}
}

// sync makes the objects of an item as they should be. wanted is whether the item
// is to be looked at again, and first whether the driver had not been asked before.
func (c *Controller) sync(ctx context.Context, it item) (wanted, first bool, err error) {
	objects := c.table.of(it)
	wanted, known := c.goals.wants(it)
	if !known {
		return true, false, errors.New("not known yet which objects there should be")
	}
	if !wanted {
		return false, false, c.deleteAll(ctx, objects)
	}
	if len(objects) > 1 {
		var rest *resting
		if err := c.deleteAll(ctx, objects[1:]); err != nil && !errors.As(err, &rest) {
			return true, false, err
		}
	}
	class, err := c.cfg.Classes.Lister().Get(it.class)
	if apierrors.IsNotFound(err) || err == nil && !c.cfg.counts(class) {
		return false, false, nil // the next plan says so too, and has its objects deleted
	} else if err != nil {
		return true, false, fmt.Errorf("getting storage class %q: %w", it.class, err)
	}
	verb, object := "create", (*storagev1.CSIStorageCapacity)(nil)
	if len(objects) > 0 {
		verb, object = "patch", objects[0]
	}
	if wait := c.access.rest(verb); wait > 0 {
		return true, false, &resting{verb, wait}
	}
	if !c.cfg.IsLeader() {
		return true, false, errNotLeader
	}
	first = c.backlog.looking(it)
	room, err := c.ask(ctx, it, class)
	if err != nil {
		return true, first, err
	}
	return true, first, c.publish(ctx, it, object, room)
}

// room is the answer of a driver, in bytes.
type room struct {
	available int64
	// largest is the size of the largest volume, or nil if the driver does not tell.
	largest *int64
}

// ask asks the driver. The parameters are those of the class as they are, the
// csi.storage.k8s.io/ keys that CreateVolume does not get among them: so drivers
// know it from external-provisioner, and CSI gives the call no secrets. No
// volume capabilities are named, since the class does not know them.
func (c *Controller) ask(ctx context.Context, it item, class *storagev1.StorageClass) (room, error) {
	callCtx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	resp, err := c.cfg.Driver.GetCapacity(callCtx, &csi.GetCapacityRequest{
		Parameters: maps.Clone(class.Parameters), AccessibleTopology: it.segment.Topology(),
	})
	var answer room
	if err == nil {
		answer, err = read(resp)
	}
	c.metrics.asked(err)
	if err != nil {
		return room{}, fmt.Errorf("asking the driver for its capacity: %w", err)
	}
	return answer, nil
}

// read takes an answer apart. The API server takes no negative sizes.
func read(resp *csi.GetCapacityResponse) (room, error) {
	if resp == nil {
		return room{}, errors.New("the driver answered GetCapacity with nothing")
	}
	answer := room{available: resp.GetAvailableCapacity()}
	if size := resp.GetMaximumVolumeSize(); size != nil {
		answer.largest = &size.Value
	}
	if answer.available < 0 || answer.largest != nil && *answer.largest < 0 {
		return room{}, fmt.Errorf("the driver answered GetCapacity with a negative size: available_capacity %d, maximum_volume_size %v", answer.available, resp.GetMaximumVolumeSize())
	}
	return answer, nil
}

// caught calls f and returns a panic in it as an error, counted and logged with
// its stack: one bad object, or one bad answer, does not stop the rest.
func (c *Controller) caught(logger klog.Logger, f func() error) error {
	err := runner.Safely(f)
	var p *runner.PanicError
	if errors.As(err, &p) {
		c.metrics.panics.Inc()
		logger.Error(err, "Caught a panic", "stack", string(p.Stack))
	}
	return err
}
