package failover

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/testutil"
)

// An object of the wrong kind in a cache makes the lister panic: nothing is
// decided while it is there, the process lives, and the next look decides.
func TestPanicDecidesNothingAndIsTriedAgain(t *testing.T) {
	run(t, cluster(), func(t *testing.T, r *rig) {
		store := r.c.cfg.Informers.Core().V1().Nodes().Informer().GetStore()
		bad := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}
		if err := store.Add(bad); err != nil {
			t.Fatal(err)
		}
		r.health.set(fails("data", "n1"))
		if pv := r.received(time.Second); pv != "" {
			t.Errorf("%s was sent although nothing could be decided", pv)
		}
		const name = "ha_sidecar_failover_decide_panics_total"
		want := `# HELP ` + name + ` [ALPHA] Panics caught while deciding; nothing is decided then.
# TYPE ` + name + ` counter
` + name + " 1\n"
		if err := testutil.GatherAndCompare(r.registry, strings.NewReader(want), name); err != nil {
			t.Error(err)
		}
		if err := store.Delete(bad); err != nil {
			t.Fatal(err)
		}
		if pv := r.received(2 * lookAgain); pv == "" {
			t.Error("no name was sent although the next look could decide")
		}
	})
}
