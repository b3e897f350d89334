package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// TestLegacyDialect has a driver of CSI 1.12 or older, which says abnormal or
// not, and neither what is wrong nor from where.
func TestLegacyDialect(t *testing.T) {
	w := ownWorld(t, rig.Config{
		Nodes: 3, Replicas: 1, Health: "legacy", SidecarArgs: quickArgs,
		Values: append(append([]string{"failover.mode=enforce", "failover.fence=unpublish", "failover.maxFailingNodes=100%"}, quickValues...), "health.interval=500ms"),
	})
	db := w.database(bounded(t), t, "legacy", "node-1")
	conditions := func() []v1.VolumeHealthCondition {
		if claim := w.Claim(rig.Namespace, db.name); claim != nil && claim.Status.HealthStatus != nil {
			return claim.Status.HealthStatus.HealthConditions
		}
		return nil
	}

	// As it comes, abnormal is told on the claim, and nothing is moved for it.
	t.Run("ReportTellsAndTouchesNothing", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		db.fails(ctx)
		db.await(ctx, "the claim's status tells of it", func() bool {
			return slices.ContainsFunc(conditions(), func(c v1.VolumeHealthCondition) bool {
				return c.Status == v1.VolumeHealthDegraded && c.Reason == "VolumeConditionAbnormal" && c.Message != ""
			})
		})
		db.await(ctx, "an event on the claim tells of it", func() bool { return len(w.Events(db.name, "VolumeConditionAbnormal")) == 1 })
		db.await(ctx, "it is decided to report it", func() bool {
			return w.counted("ha_sidecar_failover_answers", `action="report".*reason="Degraded"`) == 1
		})
		db.quiet(ctx)
		db.heals(ctx)
		db.await(ctx, "the claim's status tells of the end", func() bool { return len(conditions()) == 0 })
		db.await(ctx, "an event on the claim tells of the end", func() bool { return len(w.Events(db.name, "VolumeConditionNormal")) == 1 })
		db.quiet(ctx)
	})

	// Asked to take it for a failure, it first shows what it would do.
	t.Run("FailoverIsObserved", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		db.restarts(ctx, "--legacy-abnormal=failover", "--failover-mode=observe")
		db.fails(ctx)
		db.wouldMove(ctx)
	})

	// And then does it.
	t.Run("FailoverMoves", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		db.restarts(ctx, "--legacy-abnormal=failover", "--evict-deadline=1m")
		db.moves(ctx)
		db.heals(ctx)
	})

	// The volume recovers while its evicted pod is being stopped: the move is not
	// called for any more, but what was asked for happens, and its end is told.
	// (A stuck virtual node says nothing of its pods; the sweep does.)
	t.Run("RecoveryWhileItsPodStops", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		node := db.pod.Spec.NodeName
		db.hangs(ctx)
		db.fails(ctx)
		db.awaitEvent(ctx, "FailoverEvicted", "")
		db.cordons(ctx) // or the pod might come back to the node that it leaves
		db.heals(ctx)
		db.await(ctx, "nothing is left to decide", func() bool { return w.counted("ha_sidecar_failover_answers", `.`) == 0 })
		db.podStays(ctx)
		if err := w.nodeNamed(node).Agent.Release(ctx); err != nil {
			t.Fatal(err)
		}
		db.moves(ctx)
		db.await(ctx, "the end is told", func() bool {
			return slices.ContainsFunc(w.Events(node, "FailoverDone"), func(e *v1.Event) bool { return strings.Contains(e.Message, "["+db.pv.Name+"]") })
		})
	})
}

// cordons keeps pods off the pod's node until the test ends.
func (db *database) cordons(ctx context.Context) {
	db.t.Helper()
	node := db.pod.Spec.NodeName
	set := func(ctx context.Context, unschedulable string) {
		_, err := db.Client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"spec":{"unschedulable":`+unschedulable+`}}`), metav1.PatchOptions{})
		if err != nil {
			db.t.Error(err)
		}
	}
	db.t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		set(ctx, "null")
	})
	set(ctx, "true")
}

// restarts ends the replicas and starts one with these flags added.
func (db *database) restarts(ctx context.Context, flags ...string) {
	db.t.Helper()
	if _, err := db.Restart(ctx, flags...); err != nil {
		db.t.Fatal(err)
	}
}

// wouldMove waits until it is shown what enforce would do, and checks that
// nothing was done.
func (db *database) wouldMove(ctx context.Context) {
	db.t.Helper()
	db.awaitEvent(ctx, "FailoverWouldMove", "--failover-mode=enforce would move 1 pods off the node")
	for _, metric := range []string{"ha_sidecar_failover_decisions_total", "ha_sidecar_failover_answers"} {
		db.await(ctx, metric+" has the move", func() bool { return db.counted(metric, `action="move"`) == 1 })
	}
	db.quiet(ctx)
	if n := db.counted("ha_sidecar_failover_step_seconds_count", "."); n != 0 {
		db.t.Errorf("%v steps of a walk were taken", n)
	}
}
