package e2e

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// TestDefaults sets nothing at first, and then the mode and the fence and
// nothing else that is decided by.
func TestDefaults(t *testing.T) {
	w := ownWorld(t, rig.Config{Nodes: 3, Replicas: 1})
	db := w.database(bounded(t), t, "defaults", "node-1")
	db.keepsHold = true // for 10 minutes (--suspect-for)
	seen := func(want bool) func() bool {
		return func() bool { return abnormal(w.Pod(rig.Namespace, db.pod.Name)) == want }
	}

	// As it comes, it decides and shows what it would do, and touches nothing.
	t.Run("ObserveTouchesNothing", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		db.fails(ctx)
		db.wouldMove(ctx)
		db.heals(ctx)
		db.await(ctx, "nothing is left to decide", func() bool { return w.counted("ha_sidecar_failover_answers", `.`) == 0 })
		db.quiet(ctx)
	})

	db.restarts(bounded(t), "--failover-mode=enforce", "--fence=unpublish")

	// A connection that flaps, each time for less than it takes to confirm, moves
	// nothing.
	t.Run("LinstorCSI89_FlappingMovesNothing", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		for range 3 {
			db.fails(ctx)
			db.await(ctx, "the failure is seen", seen(true))
			db.heals(ctx)
			db.await(ctx, "the recovery is seen", seen(false))
		}
		db.await(ctx, "the decision to wait was made", func() bool {
			return w.counted("ha_sidecar_failover_decisions_total", `action="wait".*reason="Unconfirmed"`) >= 1
		})
		db.quiet(ctx)
	})

	// A path that heals before the failure is confirmed cancels the move.
	t.Run("Kubernetes90794_RecoveryCancels", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		db.fails(ctx)
		db.await(ctx, "it is being waited", func() bool { return w.counted("ha_sidecar_failover_answers", `action="wait"`) >= 1 })
		db.heals(ctx)
		db.await(ctx, "nothing is left to decide", func() bool { return w.counted("ha_sidecar_failover_answers", `.`) == 0 })
		db.quiet(ctx)
	})

	// With the defaults it acts.
	begun := time.Now()
	t.Run("Karavi59_ActsWithoutOptionalFlags", func(t *testing.T) {
		ctx := bounded(t)
		in(t, db)
		db.fails(ctx)
		db.moves(ctx)
	})

	// It acts after a time of probation only, not on the first report.
	t.Run("Stork598_ProbationBeforeActing", func(t *testing.T) {
		reported, ok := w.Observer.First(begun, func(ch rig.Change) bool {
			pod, isPod := ch.New.(*v1.Pod)
			return isPod && pod.Name == db.pod.Name && abnormal(pod)
		})
		acted, too := w.Observer.First(begun, func(ch rig.Change) bool {
			node, isNode := ch.New.(*v1.Node)
			return isNode && held(node)
		})
		if !ok || !too {
			t.Fatalf("reported: %v, acted: %v", ok, too)
		}
		t.Logf("%v from the report to the hold", acted.Sub(reported))
		if took := acted.Sub(reported); took < 9500*time.Millisecond {
			t.Errorf("it acted %v after the report, want 10 s (--health-confirm-after)", took)
		}
	})
}
