package hacontroller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestMetricsNameReasonsAndSteps(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		registry := metrics.NewKubeRegistry()
		bad := aPod("q", "b")
		bad.OwnerReferences = nil
		s := newScene(t, aNode(false), []string{"a", "b"}, aPod("p", "a"), bad)
		s.targets.byPV["a"] = targetsOf([]string{"a"}, "uid-p").byPV["a"]
		s.targets.byPV["b"] = targetsOf([]string{"b"}, "uid-q").byPV["b"]
		signal, stop := s.with(WithFencer(s.fencer), WithRegistry(registry))
		signal("a")
		signal("b")
		pass(time.Hour)
		stop()
		want := strings.NewReader(`# HELP ha_sidecar_failover_refusals_total [ALPHA] Pods, attachments and nodes that a failover did not touch or that hold it up, by reason.
# TYPE ha_sidecar_failover_refusals_total counter
ha_sidecar_failover_refusals_total{reason="Ownerless"} 1
`)
		if err := testutil.GatherAndCompare(registry, want, "ha_sidecar_failover_refusals_total"); err != nil {
			t.Error(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		steps := map[string]uint64{}
		for _, f := range families {
			if f.GetName() != "ha_sidecar_failover_step_seconds" {
				continue
			}
			for _, m := range f.GetMetric() {
				steps[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
			}
		}
		for _, step := range []string{MilestoneHeld, MilestoneRecorded, MilestoneFenced, MilestonePodDeleted, MilestonePodsGone, MilestoneVADeleted, MilestoneDone} {
			if steps[step] != 1 {
				t.Errorf("step %s observed %d times, want 1", step, steps[step])
			}
		}
	})
}

// panicky panics when asked a first time for what it is armed with.
type panicky struct {
	*fakeTargets
	left atomic.Int32
}

func (p *panicky) Targets(pv string) ([]volume.Target, bool) {
	if pv == "a" && p.left.Add(-1) == 0 {
		panic("a bug")
	}
	return p.fakeTargets.Targets(pv)
}

func TestPanicIsCaughtAndTriedAgain(t *testing.T) {
	for _, at := range []int32{1, 2} { // when told, and when working
		inBubble(t, func(t *testing.T) {
			registry := metrics.NewKubeRegistry()
			s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
			targets := &panicky{fakeTargets: s.targets}
			targets.left.Store(at)
			signal, stop := s.with(WithFencer(s.fencer), WithTargets(targets), WithRegistry(registry))
			signal("a")
			pass(time.Second)
			if at == 1 {
				signal("a") // what was told while it panicked is lost, not more
			}
			pass(time.Minute)
			stop()
			s.exists("va-a-n1", false)
			want := strings.NewReader(`# HELP ha_sidecar_failover_panics_total [ALPHA] Panics caught while working on a node.
# TYPE ha_sidecar_failover_panics_total counter
ha_sidecar_failover_panics_total 1
`)
			if err := testutil.GatherAndCompare(registry, want, "ha_sidecar_failover_panics_total"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPermissionToMarkPodsMissing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		s.before = func(line string) error {
			if strings.HasPrefix(line, "patch pods/status") {
				return apierrors.NewForbidden(podsGVR.GroupResource(), "p", nil)
			}
			return nil
		}
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		stop()
		s.exists("p", false)
		s.exists("va-a-n1", false)
	})
}

func TestPodsAreMarkedAsDisrupted(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pod := aPod("p", "a")
		pod.Finalizers = []string{"example.com/look"}
		s := newScene(t, aNode(false), []string{"a"}, pod)
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		obj, err := s.tracker.Get(podsGVR, "ns", "p")
		if err != nil {
			t.Fatal(err)
		}
		stop()
		status := obj.(*v1.Pod).Status
		if status.Phase != v1.PodFailed || len(status.Conditions) != 1 || status.Conditions[0].Type != v1.DisruptionTarget ||
			status.Conditions[0].Status != v1.ConditionTrue || status.Conditions[0].Reason != DisruptionReason {
			t.Errorf("status %+v", status)
		}
	})
}

func TestEveryKindOfRequestMayFailOnce(t *testing.T) {
	for _, request := range []struct{ verb, resource string }{
		{"get", "nodes"}, {"list", "pods"}, {"get", "volumeattachments"}, {"patch", "nodes"},
		{"patch", "volumeattachments"}, {"patch", "pods"}, {"delete", "pods"}, {"delete", "volumeattachments"},
	} {
		t.Run(request.verb+" "+request.resource, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
				signal, stop := s.with(WithFencer(s.fencer))
				var failed atomic.Bool
				s.client.PrependReactor(request.verb, request.resource, func(clienttesting.Action) (bool, runtime.Object, error) {
					if failed.CompareAndSwap(false, true) {
						return true, nil, apierrors.NewServiceUnavailable("rolling update")
					}
					return false, nil, nil
				})
				signal("a")
				pass(time.Minute)
				stop()
				s.exists("p", false)
				s.exists("va-a-n1", false)
				if !failed.Load() {
					t.Error("that request was never made")
				}
				if s.logged("delete pods") != 1 || s.logged("delete volumeattachments") != 1 {
					t.Errorf("wrote %q", s.log())
				}
			})
		})
	}
}

// Closures of one node side by side: one that cannot go on does not hold up the
// other.
func TestClosuresSideBySide(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		bad := aPod("q", "b")
		bad.OwnerReferences = nil
		s := newScene(t, aNode(false), []string{"a", "b"}, aPod("p", "a"), bad)
		s.targets.byPV["a"] = targetsOf([]string{"a"}, "uid-p").byPV["a"]
		s.targets.byPV["b"] = targetsOf([]string{"b"}, "uid-q").byPV["b"]
		signal, stop := s.with(WithFencer(s.fencer))
		signal("b")
		signal("a")
		synctest.Wait()
		stop()
		s.exists("p", false)
		s.exists("va-a-n1", false)
		s.exists("q", true)
		s.exists("va-b-n1", true)
	})
}

func TestTwoSignalsOfOneClosureAreOneWalk(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a", "b"}, aPod("p", "a", "b"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		signal("b")
		signal("a")
		pass(time.Minute)
		stop()
		if s.logged("delete pods") != 1 || s.logged("delete volumeattachments") != 2 || s.logged("patch volumeattachments") != 2 {
			t.Errorf("wrote %q", s.log())
		}
	})
}

// counting is a judge that is only to be asked for many names at once.
type counting struct {
	*fakeTargets
	asked atomic.Int32
}

func (c *counting) Targets(string) ([]Target, bool) { panic("asked one by one") }

func (c *counting) TargetsOf(pvs []string) map[string][]Target {
	c.asked.Add(1)
	all := map[string][]Target{}
	for _, pv := range pvs {
		if targets, ok := c.fakeTargets.Targets(pv); ok {
			all[pv] = targets
		}
	}
	return all
}

// The judge looks at all that fails for each answer, so names that fail together
// must not cost a look each.
func TestNamesThatFailTogetherAreAskedForTogether(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		const many = 50
		failing := make(chan string, many+1)
		var pvs []string
		var pods []*v1.Pod
		for i := range many {
			pvs = append(pvs, fmt.Sprintf("v%02d", i))
			pods = append(pods, aPod(fmt.Sprintf("p%02d", i), pvs[i]))
			failing <- pvs[i]
		}
		failing <- "unknown"
		s := newScene(t, aNode(true), pvs, pods...)
		for i, pv := range pvs { // each its own closure
			s.targets.byPV[pv] = targetsOf([]string{pv}, pods[i].UID).byPV[pv]
		}
		judge := &counting{fakeTargets: s.targets}
		hac := NewHAController("test", s.client, failing, append(s.opts, WithTargets(judge), WithEventRecorder(s.world))...)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- hac.Run(ctx) }()
		synctest.Wait()
		if n := s.logged("evict"); n != many {
			t.Errorf("evicted %d pods", n)
		}
		// Once to take them in, and once in each of a handful of passes.
		if n := judge.asked.Load(); n > 10 {
			t.Errorf("asked %d times", n)
		}
		// The attachments are listed, since all that there are are looked for.
		for _, a := range s.client.Actions() {
			if a.Matches("get", "volumeattachments") {
				t.Fatal("read the attachments one by one")
			}
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
}

// The API server forgets events: what stands in the way for a day must not be
// visible for an hour.
func TestALastingRefusalIsToldAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with() // without a fence
		signal("a")
		pass(6*time.Hour + time.Minute)
		stop()
		if n := s.told("FailoverRefused p "); n < 6 || n > 13 {
			t.Errorf("told %d times in six hours", n)
		}
	})
}
