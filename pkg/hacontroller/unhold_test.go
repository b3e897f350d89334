package hacontroller

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"

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
		pass(25 * time.Minute)
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

// busyNode lets somebody else write the node right before each of the first n
// patches of it, as its agent does when many volumes leave at once.
func (s *scene) busyNode(n int, write func(*v1.Node)) {
	s.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if n--; n >= 0 {
			update(s.world, nodesGVR, "", node1, write)
		}
		return false, nil, nil
	})
}

// requests are those that belong to holding and asking, in their order, without
// the informers' own.
func (s *scene) requests() (all []string) {
	for _, a := range s.client.Actions() {
		switch what := strings.TrimSuffix(a.GetVerb()+" "+a.GetResource().Resource+"/"+a.GetSubresource(), "/"); what {
		case "get nodes", "patch nodes", "create pods/eviction":
			all = append(all, what)
		}
	}
	return all
}

// begins checks the requests up to the first eviction. It is sent by a goroutine of
// its own: the read of the next pass may overtake it.
func (s *scene) begins(want ...string) {
	s.t.Helper()
	const eviction = "create pods/eviction"
	all := s.requests()
	i := slices.Index(all, eviction)
	if i > 0 && all[i-1] == "get nodes" {
		all = slices.Delete(all, i-1, i)
		i--
	}
	if got := all[:i+1]; !slices.Equal(got, want) {
		s.t.Errorf("requests %q, want %q first", all, want)
	}
}

func TestHoldOfABusyNodeTakesOneTry(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		s.busyNode(1, func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{"x"} })
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		stop()
		s.begins("get nodes", "patch nodes", "create pods/eviction")
		s.held(true)
	})
}

// Somebody else's taint is not lost, and no pod goes before the hold stands.
func TestHoldMeetsAnotherTaint(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		s := newScene(t, aNode(true), []string{"a"}, aPod("p", "a"))
		s.busyNode(1, func(n *v1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "theirs", Effect: v1.TaintEffectNoSchedule})
		})
		signal, stop := s.with(WithFencer(s.fencer))
		signal("a")
		pass(time.Second)
		stop()
		s.begins("get nodes", "patch nodes", "get nodes", "patch nodes", "create pods/eviction")
		s.held(true)
		node, err := s.client.CoreV1().Nodes().Get(t.Context(), node1, metav1.GetOptions{})
		if err != nil || !slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == "theirs" }) {
			t.Errorf("their taint is lost: %v, %v", node.Spec.Taints, err)
		}
	})
}

// What the server really refuses is no conflict: it must be seen.
func TestOnlyATestThatFailsIsAConflict(t *testing.T) {
	refused := apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "test failed", 0, false)
	if !testFailed(refused) {
		t.Errorf("%v is taken for a refusal", refused)
	}
	for _, err := range []error{
		nil,
		errors.New("x"),
		apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, node1, field.ErrorList{field.TooLong(field.NewPath("metadata", "annotations"), "", 1)}),
		apierrors.NewConflict(v1.Resource("nodes"), node1, errors.New("x")),
	} {
		if testFailed(err) {
			t.Errorf("%v is taken for a failed test", err)
		}
	}
}
