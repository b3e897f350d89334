package e2e

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// Pods that cannot start, since their volume is never attached or never mounted,
// are not deleted in a loop when the node reports its storage to be unreachable:
// it is shown why each stays, and they start when the storage is back.
func TestPiraeus20_StuckInContainerCreating(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	unattached := w.stuck(ctx, t, "piraeus20-unattached", node, w.Driver, "ControllerPublishVolume")
	unmounted := w.stuck(ctx, t, "piraeus20-unmounted", node, w.nodeNamed(node).Driver, "NodeStageVolume")
	storage := func(ctx context.Context, conditions ...simctl.Condition) {
		if err := w.Driver.SetStorageHealth(ctx, node, conditions...); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		storage(ctx)
	})
	storage(ctx, simctl.Condition{Kind: state.Unreachable, Reason: "ArrayUnreachable", Message: "no path to the array"})
	unmounted.awaitEvent(ctx, "FailoverRefused", "PodNotStarted")
	// Nobody can say of a volume that is not attached whether the node reaches it.
	unattached.await(ctx, "the VolumeAttachment tells of the error", func() bool {
		va := unattached.attachment(node)
		return va != nil && va.Status.AttachError != nil && strings.Contains(va.Status.AttachError.Message, "no path to the array")
	})
	both := []*stuck{unattached, unmounted}
	for _, db := range both {
		db.annotatePod(ctx, "example.com/looked-at", "again") // it is decided again
		db.hits(ctx, db.hit+1)
		db.stays(ctx)
	}
	if n := toldTimes(w.Events(unmounted.pod.Name, "FailoverRefused")); n != 1 {
		t.Errorf("the refusal was told %d times, want once", n)
	}
	storage(ctx)
	for _, db := range both {
		if err := db.driver.Clear(ctx, db.fault); err != nil {
			t.Fatal(err)
		}
		first := db.pod.UID
		if db.runs(ctx); db.pod.UID != first {
			t.Errorf("%s was replaced before it could start", db.pod.Name)
		}
		db.stays(ctx)
	}
	if held(w.Node(node)) {
		t.Errorf("%s is held although nothing moves", node)
	}
}

// stuck is a database whose pod cannot start.
type stuck struct {
	*database
	driver *simctl.Client
	fault  string
	// hit is how often the fault had been met when the pod was seen to wait.
	hit int
}

// stuck starts a database on the node whose volume the method of the driver
// refuses, and waits until that has happened.
func (w *world) stuck(ctx context.Context, t *testing.T, name, node string, driver *simctl.Client, method string) *stuck {
	t.Helper()
	db := &stuck{database: w.provision(ctx, t, name), driver: driver}
	db.fault = inject(ctx, t, driver, simctl.Fault{
		Method: method, Volume: db.id(), Node: node, Code: codes.Internal, Message: "no path to the array",
	})
	db.starts(ctx, node)
	db.hits(ctx, 1)
	db.await(ctx, "the pod waits for its volume", func() bool {
		db.pod = w.Pod(rig.Namespace, name+"-0")
		return db.pod != nil && db.pod.Spec.NodeName == node && db.attachment(node) != nil
	})
	return db
}

// hits waits until the fault was met so many times.
func (db *stuck) hits(ctx context.Context, n int) {
	db.t.Helper()
	now, err := db.driver.AwaitHits(ctx, db.fault, n)
	if err != nil {
		db.t.Fatal(err)
	}
	db.hit = now.Hits
}

// stays checks that nobody asked the pod to go.
func (db *stuck) stays(ctx context.Context) {
	db.t.Helper()
	db.untouched(ctx)
	if n := len(db.deletions(db.pod.Name)); n != 0 {
		db.t.Errorf("%d pods of %s were deleted", n, db.name)
	}
}

// toldTimes is how often people were told what the events say.
func toldTimes(events []*v1.Event) (n int32) {
	for _, e := range events {
		n += max(e.Count, 1)
	}
	return n
}
