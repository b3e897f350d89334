package health

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// broken panics at its first sweep and asks the other driver from then on.
type broken struct {
	*scripted
	sweeps int
}

func (b *broken) Sweep(ctx context.Context, handles []volume.Handle) (volume.Sweep, error) {
	b.sweeps++
	if b.sweeps == 1 {
		panic("a bug")
	}
	return b.scripted.Sweep(ctx, handles)
}

func TestPanicInASweepIsOneFailedSweep(t *testing.T) {
	b := &broken{scripted: &scripted{}}
	b.says(true, true, volume.Reading{Key: volume.Key{Handle: "vol"}, Conditions: []volume.Condition{{
		Kind: volume.DataLoss, Reason: "Lost",
	}}})
	run(t, func(c *Config) { c.Sweeper = b }, world(), func(r *rig) {
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		r.wantMetric("ha_sidecar_health_panics_total{} 1")
		r.wantMetric("ha_sidecar_volumes{state=DataLoss} 1")
	})
}

// An object of the wrong kind in the cache makes the lister panic.
func TestPanicAtOneObjectLeavesTheOthersAlone(t *testing.T) {
	var factory informers.SharedInformerFactory
	run(t, func(c *Config) { factory = c.Informers }, world(newLease("n2", t0)), func(r *rig) {
		r.driver.says(true, true)
		store := factory.Core().V1().PersistentVolumeClaims().Informer().GetStore()
		r.must(store.Add(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: "claim-bad"}}))
		bad := newPod("bad", "n1", "bad", pathsLost)
		_, err := r.client.CoreV1().Pods(bad.Namespace).Create(r.ctx, bad, metav1.CreateOptions{})
		r.must(err)
		synctest.Wait()
		r.wantMetric("ha_sidecar_health_panics_total{} 1")

		r.setPod(newPod("p", "n1", "pv", pathsLost))
		r.wantVerdicts("vol@n1 Inaccessible confirmed=false suspect=false")

		time.Sleep(10 * DefaultInterval)
		synctest.Wait()
		if again := panics(r); again < 5 || again > 12 {
			t.Errorf("%v panics after ten sweeps, want about one more for each", again)
		}
		r.must(store.Delete(&v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: "claim-bad"}}))
		time.Sleep(2 * DefaultInterval)
		before := panics(r)
		time.Sleep(10 * DefaultInterval)
		if after := panics(r); after != before {
			t.Errorf("%v panics after the bad object was gone, want %v", after, before)
		}
	})
}

func TestPanicInALiveReadIsAFailedCheck(t *testing.T) {
	run(t, nil, world(), func(r *rig) {
		r.renew("n1")
		calls := 0
		r.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if calls++; calls == 1 {
				panic("a bug")
			}
			return false, nil, nil
		})
		r.setPod(newPod("p", "n1", "pv", pathsLost))
		for range 6 {
			time.Sleep(DefaultConfirmAfter)
			r.renew("n1")
		}
		r.wantMetric("ha_sidecar_health_panics_total{} 1")
		r.wantMetric("ha_sidecar_health_checks_total{result=failed} 1")
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=false")
	})
}

// An entry that panics whenever it is due must not make the loop spin.
func TestStepPausesAfterAPanic(t *testing.T) {
	run(t, nil, world(), func(r *rig) {
		m := &Monitor{cfg: r.monitor.cfg, metrics: r.monitor.metrics, tracker: newTracker(rules{}), leases: newLeases(0)}
		m.current.Store(&snapshot{})
		wait := m.step(r.ctx, func() { panic("a bug") })
		if wait < panicPause {
			t.Errorf("step() = %v after a panic, want at least %v", wait, panicPause)
		}
	})
}

func panics(r *rig) (n float64) {
	families, err := r.registry.Gather()
	r.must(err)
	for _, f := range families {
		if f.GetName() == "ha_sidecar_health_panics_total" {
			n = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return n
}
