package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// recoveryDuringHoldOff: of two volumes that fail from one node, the one that
// recovers before the hold-off has passed stays, and the other one is moved.
func recoveryDuringHoldOff(t *testing.T, fails *database) {
	ctx := bounded(t)
	in(t, fails)
	recovers := fails.database(ctx, t, "recovers", fails.pod.Spec.NodeName)
	waiting := func(want float64) func() bool {
		return func() bool {
			return fails.counted("ha_sidecar_failover_answers", `action="wait".*reason="HoldOff"`) == want
		}
	}
	before := len(fails.deletions(fails.pod.Name))
	fails.restarts(ctx, "--hold-off=8s", "--health-confirm-after=500ms")
	fails.fails(ctx)
	recovers.fails(ctx)
	fails.await(ctx, "both are confirmed and held off", waiting(2))
	recovers.heals(ctx)
	fails.await(ctx, "one is held off still", waiting(1))
	fails.untouched(ctx)
	if n := len(fails.deletions(fails.pod.Name)); n != before {
		t.Errorf("%d pods of %s were asked to go before the hold-off had passed", n-before, fails.name)
	}
	from := fails.pod.Spec.NodeName
	fails.moves(ctx)
	recovers.untouched(ctx)
	if n := len(recovers.deletions(recovers.pod.Name)); n != 0 {
		t.Errorf("%d pods of %s were asked to go, although its volume had recovered", n, recovers.name)
	}
	fails.heals(ctx)
	fails.await(ctx, "the hold comes off", func() bool { return !held(fails.Node(from)) })
}

// rateHolds: no more pods are moved within a minute than may be; the others
// wait, visibly, and are not touched.
func rateHolds(t *testing.T, w *world) {
	ctx := bounded(t)
	const pods, rate = 5, 3
	dbs := w.databases(ctx, t, "csm160-rate", pods, w.Nodes[0].Name)
	dbs[0].restarts(ctx, fmt.Sprintf("--moves-per-minute=%d", rate))
	for _, db := range dbs {
		db.fails(ctx)
	}
	gone := func() (n int) {
		for _, db := range dbs {
			n += len(w.deletions(db.pod.Name))
		}
		return n
	}
	dbs[0].await(ctx, "some go and the others wait for the rate", func() bool {
		return gone() >= rate && w.counted("ha_sidecar_failover_answers", `action="wait".*reason="RateLimited"`) == pods-rate
	})
	moved := 0
	for _, db := range dbs {
		if len(w.deletions(db.pod.Name)) == 0 {
			continue
		}
		moved++
		db.moves(ctx)
	}
	for _, db := range dbs {
		if len(db.uids) == 1 {
			db.untouched(ctx)
		}
	}
	if n := gone(); moved != rate || n != rate {
		t.Errorf("%d pods of %d volumes were asked to go, want %d within a minute (--moves-per-minute)", n, moved, rate)
	}
}

// databases starts many on one node, and waits until all run.
func (w *world) databases(ctx context.Context, t *testing.T, prefix string, n int, node string) []*database {
	t.Helper()
	dbs := make([]*database, n)
	for i := range dbs {
		dbs[i] = w.create(ctx, t, fmt.Sprintf("%s-%02d", prefix, i), node, func(p *v1.PodTemplateSpec) {
			container := &p.Spec.Containers[0]
			container.Command = append(container.Command, "--interval=250ms")
		})
	}
	for _, db := range dbs {
		if db.runs(ctx); db.pod.Spec.NodeName != node {
			t.Fatalf("%s runs on %s and not on %s", db.name, db.pod.Spec.NodeName, node)
		}
	}
	return dbs
}

const (
	// manyBound is how long all pods of a node may take to leave it, of which
	// the machine's share is most: 20 writers stop and as many start.
	manyBound = time.Minute
)

// Many pods of one node leave it side by side, and none is left behind.
func TestCSM160_ManyPodsOfOneNode(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	const pods = 20
	dbs := w.databases(ctx, t, "csm160", pods, node)
	begun := time.Now()
	for _, db := range dbs {
		db.fails(ctx)
	}
	for _, db := range dbs {
		db.moves(ctx)
	}
	took := time.Since(begun)
	requests, err := w.Requests()
	if err != nil {
		t.Fatal(err)
	}
	requests = slices.DeleteFunc(requests, func(q rig.Request) bool {
		return q.Resource != "pods" || q.Subresource != "eviction" || !strings.HasPrefix(q.Name, "csm160-")
	})
	terminating, asked := w.mostTerminating(dbs), rig.MostAtOnce(requests)
	t.Logf("%d pods moved in %v, at most %d of them terminating and %d being asked at once", pods, took, terminating, asked)
	if took > manyBound {
		t.Errorf("it took %v until all had moved, want at most %v", took, manyBound)
	}
	if terminating < 2 {
		t.Error("the pods went one by one")
	}
	if len(requests) < pods || asked < 2 {
		t.Errorf("%d evictions were asked for, up to %d at once, want at least %d, side by side", len(requests), asked, pods)
	}
}

// mostTerminating is how many of the first pods were being stopped at once.
func (w *world) mostTerminating(dbs []*database) (most int) {
	first, now := map[types.UID]bool{}, map[types.UID]bool{}
	for _, db := range dbs {
		first[types.UID(db.uids[0])] = true
	}
	for _, ch := range w.Observer.Changes() {
		if pod, ok := ch.New.(*v1.Pod); ok && first[pod.UID] && pod.DeletionTimestamp != nil {
			now[pod.UID] = true
		}
		if pod, ok := ch.Old.(*v1.Pod); ok && ch.Verb == "deleted" {
			delete(now, pod.UID)
		}
		most = max(most, len(now))
	}
	return most
}
