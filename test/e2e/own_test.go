package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// counted is the sum of a metric's samples, of the leader, whose labels have the
// text.
func (w *world) counted(metric, labels string) (sum float64) {
	leader := w.Leader()
	if leader == nil {
		return 0
	}
	body, err := leader.Body("/metrics")
	if err != nil {
		return 0
	}
	for _, m := range regexp.MustCompile(`(?m)^`+metric+`\{([^}]*)\} (\S+)$`).FindAllStringSubmatch(body, -1) {
		if value, err := strconv.ParseFloat(m[2], 64); err == nil && regexp.MustCompile(labels).MatchString(m[1]) {
			sum += value
		}
	}
	return sum
}

func abnormal(pod *v1.Pod) bool {
	return pod != nil && slices.ContainsFunc(pod.Status.VolumeHealth, func(h v1.PodVolumeHealth) bool { return len(h.HealthConditions) > 0 })
}

// in makes a subtest the one that fails.
func in(t *testing.T, dbs ...*database) {
	for _, db := range dbs {
		parent := db.t
		db.t = t
		t.Cleanup(func() { db.t = parent })
	}
}

// quiet checks that nothing was touched: no pod, no VolumeAttachment, no node,
// ever.
func (db *database) quiet(ctx context.Context) {
	db.t.Helper()
	db.untouched(ctx)
	if n := len(db.deletions(db.pod.Name)); n != 0 {
		db.t.Errorf("%d pods were asked to go", n)
	}
	for _, ch := range db.Observer.Changes() {
		if node, ok := ch.New.(*v1.Node); ok && held(node) {
			db.t.Fatalf("node %s was held", node.Name)
		}
	}
}

// TestWithoutFence has no fence, and the default limit of failing nodes: one of
// three.
func TestWithoutFence(t *testing.T) {
	w := ownWorld(t, rig.Config{
		Nodes: 3, Replicas: 1, Values: append(append([]string{"failover.mode=enforce"}, quickValues...), "health.confirmAfter=3s"),
		SidecarArgs: append([]string{"--storm-cooldown=2s"}, quickArgs...),
	})
	setup := bounded(t)
	var dbs []*database
	for i, node := range w.Nodes {
		dbs = append(dbs, w.database(setup, t, fmt.Sprintf("unfenced-%d", i+1), node.Name))
	}

	// The driver that answers no question is no reason to move anything.
	t.Run("CSM1766_DriverUnavailable", func(t *testing.T) {
		ctx := bounded(t)
		in(t, dbs...)
		sweeps, err := w.Driver.Inject(ctx, simctl.Fault{Method: "ControllerListVolumeHealth", Code: codes.Unavailable, Message: "array API unreachable"})
		if err != nil {
			t.Fatal(err)
		}
		var asked []string
		for _, node := range w.Nodes {
			id, err := node.Driver.Inject(ctx, simctl.Fault{Method: "NodeGetVolumeHealth", Code: codes.Unavailable, Message: "array API unreachable"})
			if err != nil {
				t.Fatal(err)
			}
			asked = append(asked, id)
		}
		if _, err := w.Driver.AwaitHits(ctx, sweeps, 4); err != nil {
			t.Fatal(err)
		}
		for i, node := range w.Nodes {
			if _, err := node.Driver.AwaitHits(ctx, asked[i], 4); err != nil {
				t.Fatal(err)
			}
			if err := node.Driver.Clear(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Driver.Clear(ctx); err != nil {
			t.Fatal(err)
		}
		for _, db := range dbs {
			db.quiet(ctx)
		}
	})

	// A driver that is gone altogether: not ready, no action, ready again.
	t.Run("CSM1766_DriverGone", func(t *testing.T) {
		ctx := bounded(t)
		in(t, dbs...)
		sidecar := w.Leader()
		if err := w.Driver.DropSocket(ctx, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		dbs[0].await(ctx, "the sidecar is not ready", func() bool { return sidecar.Get("/readyz") != nil })
		dbs[0].await(ctx, "the sidecar is ready again", func() bool { return sidecar.Get("/readyz") == nil })
		for _, db := range dbs {
			db.quiet(ctx)
		}
	})

	// All nodes fail at once: that is the storage's fault and no node's. Nothing
	// is touched, one event says so, and it clears by itself.
	t.Run("CSM1766_CSM1828_CSM1864_AllVolumesFailAtOnce", func(t *testing.T) {
		ctx := bounded(t)
		in(t, dbs...)
		for _, db := range dbs {
			db.fails(ctx)
		}
		dbs[0].await(ctx, "the breaker opens", func() bool { return len(w.Events(rig.Driver, "FailoverBreakerOpen")) > 0 })
		dbs[0].await(ctx, "every failure is confirmed", func() bool {
			return w.counted("ha_sidecar_failover_answers", `reason="BreakerOpen"`) == float64(len(dbs))
		})
		for _, db := range dbs {
			db.quiet(ctx)
			db.heals(ctx)
		}
		dbs[0].await(ctx, "the breaker closes", func() bool { return len(w.Events(rig.Driver, "FailoverBreakerClosed")) > 0 })
		for _, db := range dbs {
			db.quiet(ctx)
		}
		if n := len(w.Events(rig.Driver, "FailoverBreakerOpen")); n != 1 {
			t.Errorf("the breaker was told of %d times", n)
		}
	})

	// One failure after that is moved, by asking.
	t.Run("CSM1864_GoesOnAfterTheOutage", func(t *testing.T) {
		ctx := bounded(t)
		in(t, dbs...)
		db := dbs[0]
		from := db.pod.Spec.NodeName
		db.fails(ctx)
		db.moves(ctx)
		db.heals(ctx)
		db.await(ctx, "the hold comes off", func() bool { return !held(w.Node(from)) })
	})

	// On a node that is Ready and has the volume in use, nothing is detached
	// without a fence: at the deadline that is said, and the pod stays.
	t.Run("Kubernetes106710_NoDetachWhileInUse", func(t *testing.T) {
		ctx := bounded(t)
		in(t, dbs...)
		db := dbs[1]
		db.hangs(ctx)
		db.fails(ctx)
		db.awaitEvent(ctx, "FailoverEnded", "")
		db.podStays(ctx)
		va := db.liveAttachment(ctx)
		if !slices.Contains(w.Node(db.pod.Spec.NodeName).Status.VolumesInUse, v1.UniqueVolumeName("kubernetes.io/csi/"+rig.Driver+"^"+db.id())) {
			t.Errorf("the node does not have the volume in use: %v", w.Node(db.pod.Spec.NodeName).Status.VolumesInUse)
		}
		if va == nil || va.DeletionTimestamp != nil || !va.Status.Attached {
			t.Errorf("the VolumeAttachment was touched: %v", va)
		}
		// It moves when it stops at last.
		node := db.pod.Spec.NodeName
		if err := w.nodeNamed(node).Agent.Release(ctx); err != nil {
			t.Fatal(err)
		}
		db.moves(ctx)
		db.heals(ctx)
		db.await(ctx, "the hold comes off", func() bool { return !held(w.Node(node)) })
	})

	t.Run("Kubernetes90794_RecoveryDuringHoldOff", func(t *testing.T) { recoveryDuringHoldOff(t, dbs[0]) })
	t.Run("CSM160_RateHolds", func(t *testing.T) { rateHolds(t, w) })
}
