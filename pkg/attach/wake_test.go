package attach

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// A held Node that went while the watch was broken: its informer has no more than a
// tombstone, and the hold went with it all the same.
func TestHeldNodeGoesUnwatched(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.hold("n1", "h-a")
		r.api.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, watch.NewFake(), nil
		})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			wantAttached(t, r, "va", false)
			obj, _, err := r.c.nodeInformer.GetStore().GetByKey("n1")
			must(err)
			r.api.remove(nodeResource, "n1")
			must(r.c.nodeInformer.GetStore().Delete(obj))
			r.c.onNodeGone(cache.DeletedFinalStateUnknown{Key: "n1", Obj: obj})
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
		})
	})
}

// A second VolumeAttachment of a volume that is there already waits for the hold of
// its node, and is attached when that is lifted.
func TestHoldIsLiftedForTheSecondOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		twin := rwo("b")
		twin.Spec.CSI.VolumeHandle = "h-a"
		d := newFakeDriver("h-a")
		d.alter("publish", "h-a", "id-n1")
		r := newRig(d, objects(rwo("a"), twin, node("n1"), published("va1", "a", "n1", true))...)
		r.hold("n1", "h-a")
		r.run(t, func(t *testing.T) {
			r.api.add(va("va2", "b", "n1"))
			r.settle(time.Minute)
			wantAttached(t, r, "va2", false)
			r.hold("n1")
			r.settle(time.Second)
			wantAttached(t, r, "va2", true)
		})
	})
}
