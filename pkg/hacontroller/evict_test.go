package hacontroller

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func TestEvictGrace(t *testing.T) {
	for _, tc := range []struct {
		spec, limit, want time.Duration
	}{
		{-1, 30 * time.Second, 30 * time.Second},
		{5 * time.Second, 30 * time.Second, 5 * time.Second},
		{time.Hour, 30 * time.Second, 30 * time.Second},
		{0, 30 * time.Second, time.Second},
		{time.Hour, time.Millisecond, time.Second},
		{time.Hour, 1500 * time.Millisecond, time.Second},
	} {
		pod := aPod("p")
		if s := int64(tc.spec / time.Second); tc.spec >= 0 {
			pod.Spec.TerminationGracePeriodSeconds = &s
		}
		if got := evictGrace(pod, tc.limit); got != tc.want {
			t.Errorf("grace of %v capped at %v is %v, want %v", tc.spec, tc.limit, got, tc.want)
		}
	}
}

func TestEvictedNamesEveryAnswer(t *testing.T) {
	gr := podsGVR.GroupResource()
	for name, tc := range map[string]struct {
		err   error
		want  Reason
		again bool
	}{
		"accepted":       {nil, "", false},
		"gone":           {apierrors.NewNotFound(gr, "p"), "", true},
		"replaced":       {apierrors.NewConflict(gr, "p", errors.New("UID")), "", true},
		"budget":         {budgetSays(), ReasonDisruptionBudget, false},
		"overloaded":     {apierrors.NewTooManyRequests("slow down", 1), ReasonThrottled, false},
		"several":        {apierrors.NewInternalError(errors.New("this pod has more than one PodDisruptionBudget")), ReasonSeveralBudgets, false},
		"internal":       {apierrors.NewInternalError(errors.New("etcd")), ReasonEvictionFailed, false},
		"forbidden":      {apierrors.NewForbidden(gr, "p", errors.New("namespace is terminating")), ReasonEvictionForbidden, false},
		"no such answer": {errors.New("connection refused"), ReasonEvictionFailed, false},
	} {
		got, again := evicted(tc.err)
		if got != tc.want || again != tc.again {
			t.Errorf("%s: %q, %v, want %q, %v", name, got, again, tc.want, tc.again)
		}
	}
}

func TestEveryReasonHasASentence(t *testing.T) {
	for reason, sentence := range sentences {
		if reason.Sentence() != sentence || sentence == "" {
			t.Errorf("%s has no sentence", reason)
		}
	}
	if got := Reason("X").Sentence(); got != "X" {
		t.Errorf("an unknown reason says %q", got)
	}
}

func TestAskTriesAgainAndGoesThroughOnceTheBudgetAllows(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"), aPod("q", "a"))
		s.budgets["p"] = budgetSays()
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		if s.logged("evict q") != 1 || s.logged("evict p") != 0 {
			t.Errorf("wrote %q", s.log())
		}
		s.stop(podsGVR, "ns", "q")
		s.allow("p")
		pass(2 * time.Second)
		if s.logged("evict p") != 1 {
			t.Errorf("wrote %q, want the refused one asked again", s.log())
		}
		s.stop(podsGVR, "ns", "p")
		synctest.Wait()
		stop()
		if s.logged("delete")+s.logged("fence") != 0 {
			t.Errorf("wrote %q", s.log())
		}
	})
}

func TestAskNeverHitsTheReplacement(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		raced := false
		s.client.PrependReactor("create", "pods/eviction", raceOnce(&raced, func() {
			again := aPod("p", "a")
			again.UID, again.Spec.NodeName = "again", "n2"
			s.stop(podsGVR, "ns", "p")
			s.add(again)
		}))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(time.Hour)
		stop()
		s.wrote("patch nodes n1")
		s.exists("p", true)
	})
}

// What was off the node and fails there again, by a pod that tolerates the hold,
// is a new walk on the same attachment.
func TestAskAgainAfterItDrained(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.stop(podsGVR, "ns", "p")
		pass(time.Minute)
		again := aPod("again", "a")
		again.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
		s.add(again)
		pass(time.Hour)
		if s.logged("evict again") != 0 {
			t.Error("moved a pod that nobody spoke of")
		}
		s.targets.mu.Lock()
		s.targets.byPV = targetsOf([]string{"a"}, "uid-again").byPV
		s.targets.mu.Unlock()
		signal("a")
		signal("a") // said twice is said once
		pass(10 * time.Second)
		stop()
		if s.logged("evict again") != 1 || s.logged("delete") != 0 {
			t.Errorf("wrote %q", s.log())
		}
	})
}

// The judge says nothing of pods that are stopping as they should, and speaks up
// again when one does not stop. The deadline is one and the same.
func TestAskDeadlineOutlivesAWithdrawal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		closure := s.targets.byPV
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.targets.withdraw("a")
		pass(35 * time.Second)
		s.targets.mu.Lock()
		s.targets.byPV = closure
		s.targets.mu.Unlock()
		signal("a")
		pass(20 * time.Second)
		if s.logged("fence") != 0 || s.logged("evict") != 1 {
			t.Errorf("wrote %q before the deadline", s.log())
		}
		pass(6 * time.Second)
		stop()
		s.exists("p", false)
		s.exists("va-a-n1", false)
		if s.told("FailoverDone n1") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

func TestAskWithdrawnIsReportedWhenTheAttachmentGoes(t *testing.T) {
	for name, tc := range map[string]struct {
		after time.Duration
		told  int
	}{
		"soon":       {20 * time.Second, 1},
		"much later": {24 * time.Hour, 0}, // it has nothing to do with the walk
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
				signal, stop := s.with(WithFencer(s.fencer))
				signal("a")
				s.targets.withdraw("a")
				pass(tc.after)
				s.stop(podsGVR, "ns", "p")
				s.stop(vasGVR, "", "va-a-n1")
				synctest.Wait()
				stop()
				if got := s.told("FailoverDone n1"); got != tc.told {
					t.Errorf("told %d times, want %d; %q", got, tc.told, s.events)
				}
				if s.logged("fence")+s.logged("delete") != 0 {
					t.Errorf("wrote %q", s.log())
				}
			})
		})
	}
}

// TestChangesAreCollectedWhileEvictionsAreUnanswered: each look costs the API
// server a list, and there are many changes while many pods move.
func TestChangesAreCollectedWhileEvictionsAreUnanswered(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		var looks atomic.Int32
		s.client.PrependReactor("list", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if !a.(clienttesting.ListAction).GetListRestrictions().Fields.Empty() {
				looks.Add(1)
			}
			return false, nil, nil
		})
		signal, stop := s.with(WithFencer(s.fencer))
		defer stop()
		signal("a")
		pass(changesTogether)
		changes := func() int32 {
			before := looks.Load()
			for i := range 5 {
				update(s.world, podsGVR, "ns", "p", func(p *v1.Pod) { p.Labels = map[string]string{"n": strconv.Itoa(i)} })
				synctest.Wait()
			}
			return looks.Load() - before
		}
		if n := changes(); n != 5 {
			t.Errorf("%d looks at 5 changes", n)
		}
		s.hac.evicting.Add(1)
		if n := changes(); n != 0 {
			t.Errorf("%d looks at once while an eviction is not answered", n)
		}
		before := looks.Load()
		pass(changesTogether)
		if n := looks.Load() - before; n != 1 {
			t.Errorf("%d looks at what was collected", n)
		}
		s.hac.evicting.Add(-1)
		update(s.world, nodesGVR, "", "n1", func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
		synctest.Wait()
		if s.logged("fence va-a-n1") != 1 {
			t.Errorf("the node's readiness is not looked at: %q", s.log())
		}
	})
}
