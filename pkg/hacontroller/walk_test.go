package hacontroller

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// budgetSays is the API server's answer for a disruption budget.
func budgetSays() error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: policyv1.DisruptionBudgetCause}}
	return err
}

// scene is a closure of pods and volumes on n1, and what is told of it.
type scene struct {
	*world
	targets *fakeTargets
	fencer  *fakeFencer
	opts    []Option
	steps   []string
	well    atomic.Bool // what WithRecovery answers
}

func newScene(t *testing.T, node *v1.Node, pvs []string, pods ...*v1.Pod) *scene {
	s := &scene{}
	var objs []runtime.Object
	var uids []types.UID
	for _, pv := range pvs {
		objs = append(objs, aVolume(pv)...)
	}
	for _, pod := range pods {
		objs = append(objs, pod)
		uids = append(uids, pod.UID)
	}
	if node != nil {
		objs = append(objs, node)
	}
	s.world = newWorld(t, objs...)
	s.targets = targetsOf(pvs, uids...)
	s.fencer = &fakeFencer{w: s.world}
	s.opts = []Option{
		WithAttacherName(driver), WithTargets(s.targets), WithStrictScope(),
		WithRecovery(func(volume.Handle, string) bool { return s.well.Load() }),
		WithObserver(func(e StepEvent) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.steps = append(s.steps, e.Step)
		}),
	}
	return s
}

// allow lifts the disruption budget of a pod.
func (s *scene) allow(pod string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.budgets, pod)
}

// with starts the controller with the scene's options and more.
func (s *scene) with(more ...Option) (signal func(string), stop func()) {
	return s.run(append(s.opts, more...)...)
}

// wrote compares all writes so far.
func (w *world) wrote(want ...string) {
	w.t.Helper()
	if diff := cmp.Diff(want, w.log()); diff != "" {
		w.t.Errorf("writes (-want +got):\n%s", diff)
	}
}

func TestWalkOffAFailedNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		stop()
		s.wrote(
			"patch nodes n1",
			"patch volumeattachments va-a-n1",
			"fence va-a-n1",
			"patch pods/status p",
			"delete pods p uid-p",
			"delete volumeattachments va-a-n1 uid-va-a-n1",
		)
		want := []string{"held", "recorded", "fenced", "pod-deleted", "pods-gone", "va-deleted", "done"}
		if diff := cmp.Diff(want, s.steps); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		node := s.node()
		if !holds(node, driver, []string{"a"}, true) || node.Spec.Taints[0].Key != "foreign" {
			t.Errorf("node is not held as it should be: %+v", node)
		}
		for _, e := range []string{"ForceDeleted p ", "ForceDetached va-a-n1 ", "FailoverHold n1 ", "FailoverDone n1 "} {
			if s.told(e) != 1 {
				t.Errorf("events %q, want one %q", s.events, e)
			}
		}
	})
}

func TestWalkOffAMissingNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, nil, []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		stop()
		s.exists("p", false)
		s.exists("va-a-n1", false)
	})
}

func TestWalkRecordsTheWholePlanBeforeAnyFence(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a", "b"}, aPod("p", "a", "b"), aPod("q", "b"))
		s.fencer.hang = make(chan struct{})
		signal, stop := s.with(WithFencer(s.fencer))
		signal("b")
		for _, pv := range []string{"a", "b"} {
			obj, err := s.tracker.Get(vasGVR, "", "va-"+pv+"-n1")
			if err != nil {
				t.Fatal(err)
			}
			rec, ok, err := volume.FenceRecordOf(obj.(*storagev1.VolumeAttachment))
			if !ok || err != nil || rec.Node != node1 || rec.BootID != "boot-1" || len(rec.Targets) != 2 || len(rec.Targets[0].PodUIDs) != 2 {
				t.Errorf("record of %s: %+v, %v, %v", pv, rec, ok, err)
			}
		}
		s.exists("p", true)
		close(s.fencer.hang)
		synctest.Wait()
		stop()
		for _, name := range []string{"p", "q", "va-a-n1", "va-b-n1"} {
			s.exists(name, false)
		}
	})
}

// The end is told too when somebody else moves the pod that a budget kept.
func TestWalkIsDoneHoweverThePodGoes(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		s.budgets["p"] = budgetSays()
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(2 * time.Minute) // the round has ended
		s.stop(podsGVR, "ns", "p")
		s.targets.withdraw("a")
		synctest.Wait()
		s.stop(vasGVR, "", "va-a-n1")
		pass(time.Minute)
		stop()
		if s.told("FailoverEnded p ") != 1 || s.told("FailoverDone n1 ") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

func TestWalkEvictsOnAReadyNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		grace := int64(300)
		pod := aPod("p", "a")
		pod.Spec.TerminationGracePeriodSeconds = &grace
		s := newScene(t, aNode(true), []string{"a"}, pod)
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.wrote("patch nodes n1", "evict p uid-p grace=30")
		pass(20 * time.Second)
		s.stop(podsGVR, "ns", "p") // the kubelet is done
		synctest.Wait()
		s.targets.withdraw("a") // nothing is left to move
		s.stop(vasGVR, "", "va-a-n1")
		synctest.Wait()
		pass(time.Hour)
		stop()
		s.wrote("patch nodes n1", "evict p uid-p grace=30")
		if diff := cmp.Diff([]string{"held", "asked", "pods-gone", "done"}, s.steps); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if s.told("FailoverDone n1") != 1 || s.told("Force") != 0 {
			t.Errorf("events %q", s.events)
		}
	})
}

func TestWalkFencesWhatDidNotStopInTime(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true, use), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(59 * time.Second)
		s.wrote("patch nodes n1", "evict p uid-p grace=30")
		pass(2 * time.Second)
		stop()
		s.wrote(
			"patch nodes n1", "evict p uid-p grace=30",
			"patch volumeattachments va-a-n1",
			"patch nodes n1", // the volume must be seen clean now
			"fence va-a-n1",
			"patch pods/status p", "delete pods p uid-p",
			"delete volumeattachments va-a-n1 uid-va-a-n1",
		)
		if !holds(s.node(), driver, []string{"a"}, true) {
			t.Error("the fenced volume is not held as one")
		}
	})
}

func TestWalkNodeFailsWhileAsked(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(10 * time.Second)
		update(s.world, nodesGVR, "", node1, func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
		synctest.Wait()
		stop()
		s.exists("p", false)
		s.exists("va-a-n1", false)
	})
}

func TestWalkNeverOverridesABudgetOnAReadyNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		s.budgets["p"] = budgetSays()
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(25 * time.Minute)
		if s.logged("patch volumeattachments")+s.logged("fence")+s.logged("delete") != 0 {
			t.Errorf("wrote %q", s.log())
		}
		if s.told("FailoverEnded p ") != 1 {
			t.Errorf("events %q, want the end told once", s.events)
		}
		s.allow("p")
		pass(15 * time.Minute) // the next round
		if s.logged("evict p") != 1 {
			t.Error("the pod is not asked again")
		}
		stop()
	})
}

func TestWalkStopsBetweenRoundsWhenNotWantedAnyMore(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		s.budgets["p"] = budgetSays()
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(61 * time.Second)
		s.targets.withdraw("a")
		s.allow("p")
		pass(time.Hour)
		stop()
		if s.logged("evict")+s.logged("delete") != 0 {
			t.Errorf("wrote %q", s.log())
		}
	})
}

func TestWalkOverridesABudgetWhereTold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		s.budgets["p"] = budgetSays()
		signal, stop := s.with(WithFencer(s.fencer), WithOverridePDB())
		signal("a")
		pass(59 * time.Second)
		s.exists("p", true)
		pass(2 * time.Second)
		stop()
		s.exists("p", false)
		s.exists("va-a-n1", false)
	})
}

func TestWalkWithoutAFence(t *testing.T) {
	for name, tc := range map[string]struct {
		ready  bool
		event  string
		writes []string
	}{
		"failed node": {false, "FailoverRefused p ", nil},
		"ready node":  {true, "FailoverEnded p ", []string{"patch nodes n1", "evict p uid-p grace=30"}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(tc.ready), []string{"a"}, aPod("p", "a"))
				signal, stop := s.with()
				signal("a")
				pass(25 * time.Minute)
				stop()
				s.wrote(tc.writes...)
				if s.told(tc.event) != 1 {
					t.Errorf("events %q, want one %q", s.events, tc.event)
				}
			})
		})
	}
}

func TestWalkRetriesFencesBeforeItTouchesAPod(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		s.fencer.failures = 5
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.exists("p", true)
		if s.told("FenceFailed va-a-n1") != 1 || s.told("FenceFailed p") != 1 {
			t.Errorf("events %q, want the first failure told", s.events)
		}
		pass(14 * time.Second) // 1 + 2 + 4: the fourth has failed too, and the next comes after 8 more
		s.exists("p", true)
		if n := s.told("FenceFailed va-a-n1"); n != 3 {
			t.Errorf("told %d times after 4 tries, want at 1, 2 and 4", n)
		}
		pass(time.Minute)
		stop()
		s.exists("p", false)
		s.exists("va-a-n1", false)
	})
}

func TestWalkAsksWhileAFenceIsOutOnAReadyNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		s.fencer.failures = 1 << 30
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(10 * time.Second)
		if s.logged("evict") != 0 {
			t.Error("a pod of a failed node was asked")
		}
		update(s.world, nodesGVR, "", node1, func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionTrue })
		synctest.Wait()
		if s.logged("evict p") != 1 {
			t.Errorf("wrote %q, want an eviction", s.log())
		}
		s.stop(podsGVR, "ns", "p")
		s.stop(vasGVR, "", "va-a-n1") // the detach came through
		pass(time.Minute)
		stop()
		if s.logged("delete") != 0 {
			t.Errorf("wrote %q", s.log())
		}
	})
}

func TestWalkVetoes(t *testing.T) {
	yes := true
	for name, tc := range map[string]struct {
		change func(*v1.Pod)
		reason Reason
	}{
		"ownerless": {func(p *v1.Pod) { p.OwnerReferences = nil }, ReasonOwnerless},
		"daemonset": {func(p *v1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: &yes}}
		}, ReasonDaemonSet},
		"mirror":    {func(p *v1.Pod) { p.Annotations = map[string]string{v1.MirrorPodAnnotationKey: "x"} }, ReasonMirrorPod},
		"no volume": {func(p *v1.Pod) { p.Spec.Volumes = nil }, ReasonNotUsingVolume},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				bad := aPod("q", "a")
				tc.change(bad)
				s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"), bad)
				signal, stop := s.with(WithFencer(s.fencer))
				signal("a")
				pass(25 * time.Minute)
				stop()
				s.wrote()
				if s.told("FailoverRefused q Not moved off a failing volume: "+tc.reason.Sentence()) != 1 {
					t.Errorf("events %q", s.events)
				}
			})
		})
	}
}

func TestWalkTakesAllowedOwnerlessPods(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pod := aPod("p", "a")
		pod.OwnerReferences = nil
		pod.Annotations = map[string]string{volume.AnnotationAllowOwnerless: "true"}
		s := newScene(t, aNode(false), []string{"a"}, pod)
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		stop()
		s.exists("p", false)
	})
}

func TestWalkRefusesAPodThatTheDecisionDidNotKnow(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		s.add(aPod("late", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.wrote()
		if s.told("FailoverRefused late ") != 1 {
			t.Errorf("events %q", s.events)
		}
		s.targets.mu.Lock()
		s.targets.byPV = targetsOf([]string{"a"}, "uid-p", "uid-late").byPV
		s.targets.mu.Unlock()
		pass(DefaultReconcileInterval)
		stop()
		s.exists("late", false)
		s.exists("p", false)
	})
}

func TestWalkWaitsForFinalizers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		pod := aPod("p", "a")
		pod.Finalizers = []string{"example.com/keep"}
		s := newScene(t, aNode(false), []string{"a"}, pod)
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(25 * time.Minute)
		if s.logged("delete pods") != 1 || s.logged("delete volumeattachments") != 0 || s.told("FailoverRefused p ") != 1 {
			t.Errorf("wrote %q, events %q", s.log(), s.events)
		}
		s.stop(podsGVR, "ns", "p")
		synctest.Wait()
		stop()
		s.exists("va-a-n1", false)
	})
}

func TestWalkReportsTheEndWhenTheDriverHasLetGo(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		update(s.world, vasGVR, "", "va-a-n1", func(va *storagev1.VolumeAttachment) { va.Finalizers = []string{"external-attacher/d"} })
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(time.Minute)
		if s.told("FailoverDone") != 0 || s.logged("delete volumeattachments") != 1 {
			t.Errorf("wrote %q, events %q", s.log(), s.events)
		}
		s.stop(vasGVR, "", "va-a-n1")
		synctest.Wait()
		stop()
		if s.told("FailoverDone n1") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

func TestWalkFollowerWritesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		var el elector
		signal, stop := s.with(WithFencer(s.fencer), WithLeaderElector(&el))
		signal("a")
		pass(time.Hour)
		s.wrote()
		el.Store(true)
		pass(DefaultReconcileInterval)
		stop()
		s.exists("va-a-n1", false)
	})
}

func TestWalkStopsWhenTheLeaseIsLostBetweenSteps(t *testing.T) {
	for _, last := range []string{"patch nodes", "patch volumeattachments", "fence", "patch pods/status", "delete pods"} {
		t.Run(last, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
				var el elector
				el.Store(true)
				s.after = func(line string) error {
					if strings.HasPrefix(line, last) {
						el.Store(false)
					}
					return nil
				}
				signal, stop := s.with(WithFencer(s.fencer), WithLeaderElector(&el))
				signal("a")
				pass(time.Hour)
				log := s.log()
				if len(log) == 0 || !strings.HasPrefix(log[len(log)-1], last) {
					t.Errorf("wrote %q, want %q to be the last", log, last)
				}
				s.after = nil
				el.Store(true)
				pass(time.Minute)
				stop()
				s.exists("va-a-n1", false)
			})
		})
	}
}

func TestWalkManyPodsAndNodesAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var pvs []string
		var pods []*v1.Pod
		for i := range 50 {
			pvs = append(pvs, fmt.Sprintf("v%02d", i))
			pods = append(pods, aPod(fmt.Sprintf("p%02d", i), pvs[i]))
		}
		s := newScene(t, aNode(true), pvs, pods...)
		for i, pv := range pvs { // each its own closure
			closure := *targetsOf([]string{pv}, pods[i].UID)
			s.targets.byPV[pv] = closure.byPV[pv]
		}
		signal, stop := s.with(WithFencer(s.fencer))
		for _, pv := range pvs {
			signal(pv)
		}
		if n := s.logged("evict"); n != 50 {
			t.Errorf("evicted %d pods", n)
		}
		pass(61 * time.Second)
		stop()
		if n := s.logged("delete volumeattachments"); n != 50 || s.logged("delete pods") != 50 {
			t.Errorf("deleted %d attachments", n)
		}
	})
}

func TestWalkOneHangingFenceDelaysNobodyElse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		s.fencer.hang = make(chan struct{})
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.fencer.mu.Lock()
		s.fencer.hang = nil // only the first one hangs
		s.fencer.mu.Unlock()
		s.add(append(aVolume("b"), aPod("q", "b"))...)
		s.targets.mu.Lock()
		s.targets.byPV["b"] = targetsOf([]string{"b"}, "uid-q").byPV["b"]
		s.targets.mu.Unlock()
		synctest.Wait()
		signal("b")
		s.exists("q", false)
		s.exists("va-b-n1", false)
		s.exists("p", true)
		pass(DefaultFenceTimeout + 2*time.Second) // the hanging call ends and is tried again
		stop()
		s.exists("va-a-n1", false)
	})
}
