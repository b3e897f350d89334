package differential

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	kubecache "k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
)

// steps is the largest length of a sequence of operations, and half of it the least:
// of short ones few show anything.
const steps = 60

// actualSequence draws operations of ActualStateOfWorld.
var actualSequence = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
	return op{
		Kind:     rapid.SampledFrom(keys(actualOps)).Draw(t, "kind"),
		Volume:   rapid.IntRange(0, volumes).Draw(t, "volume"),
		Node:     rapid.IntRange(0, nodes-1).Draw(t, "node"),
		Path:     rapid.SampledFrom([]string{"", "/dev/a", "/dev/b"}).Draw(t, "path"),
		Attached: rapid.Bool().Draw(t, "attached"),
		Named:    rapid.Bool().Draw(t, "named"),
		Mounted:  rapid.SliceOfNDistinct(rapid.IntRange(0, volumes), 0, volumes, rapid.ID[int]).Draw(t, "mounted"),
		Pause:    time.Duration(rapid.IntRange(1, 600).Draw(t, "pause")) * time.Second,
	}
}), steps/2, steps)

// runActual does the operations on both and says where they first differ.
func runActual(ours cache.ActualStateOfWorld, theirs kubecache.ActualStateOfWorld, ops []op) error {
	a := newActual(ours, theirs)
	for i, o := range ops {
		if err := actualOps[o.Kind](a, o); err != nil {
			return fmt.Errorf("operation %d, %+v: %w", i, o, err)
		}
		if err := a.compare(); err != nil {
			return fmt.Errorf("after operation %d, %+v: %w", i, o, err)
		}
	}
	return nil
}

func ourActual() cache.ActualStateOfWorld {
	return cache.NewActualStateOfWorld(ourManager(), cache.WithMode(cache.Modern))
}

// TestActualStateOfWorld compares in a bubble, where the time of both is the
// same to the nanosecond.
func TestActualStateOfWorld(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		ops, theirs := actualSequence.Draw(r, "operations"), kubecache.NewActualStateOfWorld(theirManager(t))
		if err := inBubble(t, func() error { return runActual(ourActual(), theirs, ops) }); err != nil {
			r.Fatal(err)
		}
	})
}

func inBubble(t *testing.T, do func() error) (err error) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { err = do() })
	return err
}

// TestDesiredStateOfWorld does the same with the desired state.
func TestDesiredStateOfWorld(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		theirs := kubecache.NewDesiredStateOfWorld(theirManager(t))
		if err := runDesired(cache.NewDesiredStateOfWorld(ourManager()), theirs, desiredSequence.Draw(r, "operations")); err != nil {
			r.Fatal(err)
		}
	})
}
