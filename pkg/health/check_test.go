package health

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// TestPodsThatFailTogetherAreReadTogether: and each is still judged by its own
// word, with the safety of a single read.
func TestPodsThatFailTogetherAreReadTogether(t *testing.T) {
	const many = 20
	run(t, nil, manyPods(many), func(r *rig) {
		lists := 0
		r.client.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			if got := action.(clienttesting.ListAction).GetListRestrictions().Fields.String(); got != "spec.nodeName=n1" {
				t.Errorf("listed by %q", got)
			}
			obj, err := r.client.Tracker().List(v1.SchemeGroupVersion.WithResource("pods"), v1.SchemeGroupVersion.WithKind("Pod"), "")
			if err != nil {
				return true, nil, err
			}
			list := obj.(*v1.PodList)
			list.Items = list.Items[1:] // the first is gone
			list.Items[0].UID = "another"
			list.Items[1].Status.VolumeHealth[0].HealthConditions = nil
			return true, list, nil
		})
		r.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			t.Error("read one by one")
			return false, nil, nil
		})
		r.renew("n1")
		for i := range many {
			pv := fmt.Sprintf("pv%02d", i)
			_, err := r.client.CoreV1().Pods("default").UpdateStatus(r.ctx, newPod("p"+pv, "n1", pv, pathsLost), metav1.UpdateOptions{})
			r.must(err)
		}
		synctest.Wait()
		time.Sleep(DefaultConfirmAfter)
		synctest.Wait()
		confirmed := 0
		for _, v := range r.monitor.Verdicts() {
			switch {
			case !v.Confirmed:
			case v.Key.Handle == "vol-00" || v.Key.Handle == "vol-01" || v.Key.Handle == "vol-02":
				t.Errorf("%s is confirmed, and its pod does not say so", v.Key.Handle)
			default:
				confirmed++
			}
		}
		if confirmed != many-3 || lists != 1 {
			t.Errorf("%d are confirmed after %d lists", confirmed, lists)
		}
	})
}

// manyPods are pods on n1 that use one volume each, pv00 and so on.
func manyPods(many int) []runtime.Object {
	objects := []runtime.Object{newLease("n1", t0), newCSINode("n1")}
	for i := range many {
		pv := fmt.Sprintf("pv%02d", i)
		pod := newPod("p"+pv, "n1", pv)
		pod.Status.VolumeHealth = nil
		objects = append(objects, newPV(pv, volume.Handle("vol-"+pv[2:])), newClaim(pv), pod, newVA(pv, "n1"))
	}
	return objects
}

// fail has the pods say one after another, every apart, that their paths are lost.
func (r *rig) fail(from, to int, every time.Duration) {
	for i := from; i < to; i++ {
		pv := fmt.Sprintf("pv%02d", i)
		r.setPod(newPod("p"+pv, "n1", pv, pathsLost))
		time.Sleep(every)
	}
}

func (r *rig) confirmed() (n int) {
	for _, v := range r.monitor.Verdicts() {
		if v.Confirmed {
			n++
		}
	}
	return n
}

// TestChecksShareTheNextRead: one read of a node's pods at a time, and what
// becomes due meanwhile is read by one list after it, never by a read that began
// before.
func TestChecksShareTheNextRead(t *testing.T) {
	const many = 10
	run(t, nil, manyPods(many), func(r *rig) {
		var reads []string
		slow := func(action clienttesting.Action) (bool, runtime.Object, error) {
			reads = append(reads, action.GetVerb())
			time.Sleep(time.Second)
			return false, nil, nil
		}
		r.client.PrependReactor("get", "pods", slow)
		r.client.PrependReactor("list", "pods", slow)
		r.renew("n1")
		r.fail(0, 1, 2*checkGap)
		r.fail(1, many, time.Millisecond)
		time.Sleep(DefaultConfirmAfter + 3*time.Second)
		synctest.Wait()
		if len(reads) != 2 || reads[0] != "get" || reads[1] != "list" {
			t.Errorf("reads %q", reads)
		}
		if n := r.confirmed(); n != many {
			t.Errorf("%d of %d are confirmed", n, many)
		}
	})
}

// TestChecksWaitForOthersThatAreDueSoon: pods that fail one shortly after the
// other are read at once, and none waits longer than checkTogether for that.
func TestChecksWaitForOthersThatAreDueSoon(t *testing.T) {
	const every = checkGap * 2 / 3
	for _, tc := range []struct {
		many  int
		lists []time.Duration // since the first was due
	}{
		{1, []time.Duration{0}},
		{3, []time.Duration{2 * every}},
		{9, []time.Duration{checkTogether, 8 * every}},
	} {
		run(t, nil, manyPods(tc.many), func(r *rig) {
			var reads []time.Duration
			var first time.Time
			read := func(clienttesting.Action) (bool, runtime.Object, error) {
				reads = append(reads, time.Since(first))
				return false, nil, nil
			}
			r.client.PrependReactor("get", "pods", read)
			r.client.PrependReactor("list", "pods", read)
			r.renew("n1")
			first = time.Now().Add(DefaultConfirmAfter)
			r.fail(0, tc.many, every)
			time.Sleep(DefaultConfirmAfter + checkTogether)
			synctest.Wait()
			if !slices.Equal(reads, tc.lists) {
				t.Errorf("%d pods are read after %v, want %v", tc.many, reads, tc.lists)
			}
			if n := r.confirmed(); n != tc.many {
				t.Errorf("%d of %d are confirmed", n, tc.many)
			}
		})
	}
}

// TestChecksWaitForThoseOfOtherNodes: nodes that fail together are read together,
// and one that fails long after does not hold up the first.
func TestChecksWaitForThoseOfOtherNodes(t *testing.T) {
	for _, tc := range []struct{ apart, first, second time.Duration }{
		{checkGap / 2, checkGap / 2, checkGap / 2},
		{2 * checkGap, 0, 2 * checkGap},
	} {
		other := newPod("other", "n2", "pv90")
		other.Status.VolumeHealth = nil
		objects := append(manyPods(2), newLease("n2", t0), newCSINode("n2"), newPV("pv90", "vol-90"), newClaim("pv90"), other, newVA("pv90", "n2"))
		run(t, nil, objects, func(r *rig) {
			reads := map[string]time.Duration{}
			var first time.Time
			r.client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
				node := a.(clienttesting.ListAction).GetListRestrictions().Fields.String()
				reads[node] = time.Since(first)
				return false, nil, nil
			})
			r.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				reads["spec.nodeName=n2"] = time.Since(first)
				return false, nil, nil
			})
			r.renew("n1")
			r.renew("n2")
			first = time.Now().Add(DefaultConfirmAfter)
			r.fail(0, 2, 0)
			time.Sleep(tc.apart)
			r.setPod(newPod("other", "n2", "pv90", pathsLost))
			time.Sleep(DefaultConfirmAfter + checkTogether)
			synctest.Wait()
			if got := reads["spec.nodeName=n1"]; got != tc.first {
				t.Errorf("%v apart: the first node is read after %v, want %v", tc.apart, got, tc.first)
			}
			if got := reads["spec.nodeName=n2"]; got != tc.second {
				t.Errorf("%v apart: the second node is read after %v, want %v", tc.apart, got, tc.second)
			}
		})
	}
}
