package hacontroller

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func ours(node *v1.Node) (taint, annotation bool) {
	_, annotation = node.Annotations[volume.HoldKey(driver)]
	for _, t := range node.Spec.Taints {
		taint = taint || t.Key == volume.HoldKey(driver)
	}
	return taint, annotation
}

func (s *scene) held(want bool) {
	s.t.Helper()
	if taint, annotation := ours(s.node()); taint != want || annotation != want {
		s.t.Errorf("taint %v, annotation %v, want %v; %+v", taint, annotation, want, s.node().Annotations)
	}
	if foreign := s.node().Spec.Taints[0]; foreign.Key != "foreign" || foreign.Value != "x" {
		s.t.Errorf("the foreign taint is %+v", foreign)
	}
}

func use(n *v1.Node)      { n.Status.VolumesInUse = []v1.UniqueVolumeName{volume.UniqueName(driver, "h-a")} }
func unuse(n *v1.Node)    { n.Status.VolumesInUse = nil }
func recover_(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionTrue }

func TestHoldComesOffOnceRecoveredAndClean(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false, use), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.exists("va-a-n1", false)
		s.targets.withdraw("a")
		s.held(true)
		s.well.Store(true)
		update(s.world, nodesGVR, "", node1, recover_) // back, and still mounted
		pass(time.Minute)
		s.held(true)
		s.well.Store(false)
		update(s.world, nodesGVR, "", node1, unuse)
		synctest.Wait()
		s.held(true)
		if holds(s.node(), driver, []string{"a"}, true) {
			t.Error("that the node was seen clean is not kept on it")
		}
		if s.fencer.lifted() != 0 {
			t.Error("unfenced before the volume has recovered")
		}
		s.well.Store(true)
		pass(DefaultReconcileInterval)
		s.held(false)
		before := len(s.log())
		pass(time.Hour)
		stop()
		if len(s.log()) != before || s.fencer.lifted() != 1 || s.told("FailoverHoldReleased n1") != 1 {
			t.Errorf("writes %q, unfenced %q, events %q", s.log(), s.fencer.unfenced, s.events)
		}
	})
}

func TestHoldComesOffByBoot(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false, use), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.well.Store(true)
		update(s.world, nodesGVR, "", node1, func(n *v1.Node) {
			recover_(n)
			n.Status.NodeInfo.BootID = "boot-2"
		})
		synctest.Wait()
		s.held(true) // the new boot has it in use, so the kubelet is at work on it
		update(s.world, nodesGVR, "", node1, unuse)
		synctest.Wait()
		stop()
		s.held(false)
	})
}

func TestHoldComesOffByAPersonsWord(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false, use), []string{"a"}, aPod("p", "a"))
		var el elector
		el.Store(true)
		signal, stop := s.with(WithFencer(s.fencer), WithLeaderElector(&el))
		signal("a")
		s.well.Store(true)
		el.Store(false)
		update(s.world, nodesGVR, "", node1, func(n *v1.Node) {
			recover_(n)
			n.Annotations[volume.AnnotationUnfence] = "I unmounted it"
		})
		pass(time.Minute)
		s.held(true) // a follower does not act on it
		el.Store(true)
		update(s.world, nodesGVR, "", node1, func(n *v1.Node) { n.Labels = map[string]string{"x": "y"} })
		synctest.Wait()
		stop()
		s.held(false)
		if _, left := s.node().Annotations[volume.AnnotationUnfence]; left {
			t.Error("the word is still there")
		}
		if s.told("UnfenceAccepted n1 ") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

func TestHoldWordWithoutAHoldIsTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true, func(n *v1.Node) { n.Annotations = map[string]string{volume.AnnotationUnfence: "x"} }), []string{"a"})
		_, stop := s.with(WithFencer(s.fencer))
		pass(time.Minute)
		stop()
		s.wrote("patch nodes n1")
		if len(s.node().Annotations) != 0 || len(s.node().Spec.Taints) != 1 {
			t.Errorf("node %+v", s.node())
		}
	})
}

func TestHoldAfterMereEviction(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true, use), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		s.stop(podsGVR, "ns", "p")
		pass(time.Minute)
		s.held(true)
		s.targets.withdraw("a")
		s.stop(vasGVR, "", "va-a-n1")
		s.well.Store(true)
		pass(time.Minute)
		s.held(true) // still in use
		update(s.world, nodesGVR, "", node1, unuse)
		synctest.Wait()
		stop()
		s.held(false)
	})
}

func TestHoldIsLookedAfterByASuccessor(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false, use), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		stop()
		s.held(true)
		_, stop = s.with(WithFencer(s.fencer))
		s.well.Store(true)
		update(s.world, nodesGVR, "", node1, func(n *v1.Node) { recover_(n); unuse(n) })
		synctest.Wait()
		stop()
		s.held(false)
	})
}

func TestHoldOfADeletedNode(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false, use), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		before := len(s.log())
		s.stop(nodesGVR, "", node1)
		pass(time.Hour)
		stop()
		if len(s.log()) != before {
			t.Errorf("wrote %q", s.log()[before:])
		}
	})
}

func TestHoldUnreadableIsShownAndKept(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false, func(n *v1.Node) {
			n.Annotations = map[string]string{volume.HoldKey(driver): "?"}
		}), []string{"a"}, aPod("p", "a"))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(time.Hour)
		stop()
		s.wrote()
		if s.told("FailoverRefused n1 ") != 1 {
			t.Errorf("events %q", s.events)
		}
	})
}

func TestHoldConflictIsTriedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(false), []string{"a"}, aPod("p", "a"))
		raced := false
		s.client.PrependReactor("patch", "nodes", raceOnce(&raced, func() {
			update(s.world, nodesGVR, "", node1, func(n *v1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "late", Effect: v1.TaintEffectNoExecute})
			})
		}))
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(time.Second)
		stop()
		s.exists("va-a-n1", false)
		s.held(true)
		if len(s.node().Spec.Taints) != 3 {
			t.Errorf("taints %v", s.node().Spec.Taints)
		}
	})
}
