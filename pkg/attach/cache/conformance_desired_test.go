package cache

import (
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8stypes "k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// wish is a DesiredStateOfWorld, and what tests ask of it.
type wish struct {
	DesiredStateOfWorld
	t *testing.T
}

// desired runs a case of the conformance list in each mode, with some nodes.
func desired(t *testing.T, f func(w *wish), nodes ...string) {
	for _, mode := range []Mode{Seed, Modern} {
		t.Run(modeNames[mode], func(t *testing.T) {
			w := &wish{NewDesiredStateOfWorld(volume.NewVolumePluginMgr(driver), WithMode(mode)), t}
			for _, n := range nodes {
				w.AddNode(n)
			}
			f(w)
		})
	}
}

func podOf(uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod-" + uid, UID: k8stypes.UID(uid)}}
}

func (w *wish) add(uid, handle, node string) {
	w.t.Helper()
	got, err := w.AddPod(types.UniquePodName(uid), podOf(uid), specOf(handle), node)
	if err != nil || got != nameOf(handle) {
		w.t.Fatalf("AddPod is %q, %v", got, err)
	}
}

func (w *wish) remove(uid, handle, node string) {
	w.DeletePod(types.UniquePodName(uid), nameOf(handle), node)
}

func uids(pods []*v1.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, string(p.UID))
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// want compares what is to be attached: "volume node: pods", in order.
func (w *wish) want(lines ...string) {
	w.t.Helper()
	got := []string{}
	for _, v := range w.GetVolumesToAttach() {
		handle := v.VolumeSpec.PersistentVolume.Spec.CSI.VolumeHandle
		if v.VolumeName != nameOf(handle) || !w.VolumeExists(v.VolumeName, v.NodeName) {
			w.t.Errorf("%s on %s is named %s, or does not exist", handle, v.NodeName, v.VolumeName)
		}
		got = append(got, handle+" "+v.NodeName+": "+uids(v.ScheduledPods))
	}
	slices.Sort(got)
	if !slices.Equal(got, lines) {
		w.t.Errorf("to attach: %q, want %q", got, lines)
	}
}

// wantPods compares the pods of GetPodToAdd, and that each is where it says.
func (w *wish) wantPods(want ...types.UniquePodName) {
	w.t.Helper()
	pods := w.GetPodToAdd()
	if got := slices.Sorted(maps.Keys(pods)); !slices.Equal(got, want) {
		w.t.Errorf("pods %v, want %v", got, want)
	}
	for name, p := range pods {
		if string(name) != string(p.Pod.UID) || !w.VolumeExists(p.VolumeName, p.NodeName) {
			w.t.Errorf("pod %s is %s on %s with %s", name, p.Pod.UID, p.NodeName, p.VolumeName)
		}
	}
}

func (w *wish) wantNode(node string, exists bool) {
	w.t.Helper()
	if w.NodeExists(node) != exists {
		w.t.Errorf("that node %s exists is %v", node, !exists)
	}
}

func (w *wish) wantVolume(handle, node string, exists bool) {
	w.t.Helper()
	if w.VolumeExists(nameOf(handle), node) != exists {
		w.t.Errorf("that %s should be on %s is %v", handle, node, !exists)
	}
}

func Test_AddNode_Positive_NewNode(t *testing.T) {
	desired(t, func(w *wish) {
		w.AddNode("n")
		w.wantNode("n", true)
		w.want()
	})
}

func Test_AddNode_Positive_ExistingNode(t *testing.T) {
	desired(t, func(w *wish) {
		w.AddNode("n")
		w.wantNode("n", true)
		w.want()
		w.add("p", "v", "n")
		w.AddNode("n")
		w.want("v n: p")
	}, "n")
}

func Test_AddPod_Positive_NewPodNodeExistsVolumeDoesntExist(t *testing.T) {
	desired(t, func(w *wish) {
		w.wantVolume("v", "n", false)
		w.add("p", "v", "n")
		w.want("v n: p")
	}, "n")
}

func Test_AddPod_Positive_NewPodNodeExistsVolumeExists(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v", "n")
		w.want("v n: p1")
		w.add("p2", "v", "n")
		w.want("v n: p1 p2")
		w.wantPods("p1", "p2")
	}, "n")
}

func Test_AddPod_Positive_PodExistsNodeExistsVolumeExists(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		first := w.GetVolumesToAttach()[0]
		w.add("p", "v", "n")
		w.want("v n: p")
		// Neither the pod nor the spec is refreshed.
		if again := w.GetVolumesToAttach()[0]; again.VolumeSpec != first.VolumeSpec || again.ScheduledPods[0] != first.ScheduledPods[0] {
			t.Error("the spec or the pod was replaced")
		}
	}, "n")
}

func Test_AddPod_Negative_NewPodNodeDoesntExistVolumeDoesntExist(t *testing.T) {
	desired(t, func(w *wish) {
		// The node's error comes first.
		for _, spec := range []*volume.Spec{specOf("v"), nil} {
			name, err := w.AddPod("p", podOf("p"), spec, "n")
			if err == nil || name != "" || !strings.Contains(err.Error(), `no node with the name "n"`) {
				t.Errorf("name %q, error %v", name, err)
			}
		}
		w.wantVolume("v", "n", false)
		w.wantNode("n", false)
		w.want()
	})
}

func Test_DeleteNode_Positive_NodeExists(t *testing.T) {
	desired(t, func(w *wish) {
		if err := w.DeleteNode("n"); err != nil {
			t.Error(err)
		}
		w.wantNode("n", false)
		w.want()
	}, "n")
}

func Test_DeleteNode_Positive_NodeDoesntExist(t *testing.T) {
	desired(t, func(w *wish) {
		if err := w.DeleteNode("x"); err != nil {
			t.Error(err)
		}
		w.wantNode("x", false)
		w.want()
	}, "n")
}

func Test_DeleteNode_Negative_NodeExistsHasChildVolumes(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		if err := w.DeleteNode("n"); err == nil {
			t.Error("no error")
		}
		w.wantNode("n", true)
		w.want("v n: p")
		w.remove("p", "v", "n")
		if err := w.DeleteNode("n"); err != nil {
			t.Error(err)
		}
		w.wantNode("n", false)
	}, "n")
}

func Test_DeletePod_Positive_PodExistsNodeExistsVolumeExists(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		w.remove("p", "v", "n")
		w.wantVolume("v", "n", false)
		w.wantNode("n", true)
		w.want()
	}, "n")
}

func Test_DeletePod_Positive_2PodsExistNodeExistsVolumesExist(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v", "n")
		w.add("p2", "v", "n")
		w.remove("p1", "v", "n")
		w.want("v n: p2")
		w.wantPods("p2")
	}, "n")
}

func Test_DeletePod_Positive_PodDoesNotExist(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		w.remove("x", "v", "n")
		w.want("v n: p")
	}, "n")
}

func Test_DeletePod_Positive_NodeDoesNotExist(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		w.remove("p", "v", "x")
		w.wantNode("x", false) // nor does it by now
		w.wantVolume("v", "x", false)
		w.want("v n: p")
	}, "n")
}

func Test_DeletePod_Positive_VolumeDoesNotExist(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		w.remove("p", "x", "n")
		w.wantVolume("x", "n", false)
		w.want("v n: p")
	}, "n")
}

func Test_NodeExists_Positive_NodeExists(t *testing.T) {
	desired(t, func(w *wish) { w.wantNode("n", true) }, "n")
}

func Test_NodeExists_Positive_NodeDoesntExist(t *testing.T) {
	desired(t, func(w *wish) { w.wantNode("n", false) })
}

func Test_VolumeExists_Positive_VolumeExistsNodeExists(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		w.wantVolume("v", "n", true)
		w.want("v n: p")
	}, "n")
}

func Test_VolumeExists_Positive_VolumeDoesntExistNodeExists(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n")
		w.wantVolume("x", "n", false)
		w.want("v n: p")
	}, "n")
}

func Test_VolumeExists_Positive_VolumeDoesntExistNodeDoesntExists(t *testing.T) {
	desired(t, func(w *wish) {
		w.wantVolume("v", "n", false)
		w.want()
	})
}

func Test_GetVolumesToAttach_Positive_NoNodes(t *testing.T) {
	desired(t, func(w *wish) { w.want() })
}

func Test_GetVolumesToAttach_Positive_TwoNodes(t *testing.T) {
	desired(t, func(w *wish) { w.want() }, "n1", "n2")
}

func Test_GetVolumesToAttach_Positive_TwoNodesOneVolumeEach(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v1", "n1")
		w.add("p2", "v2", "n2")
		w.want("v1 n1: p1", "v2 n2: p2")
	}, "n1", "n2")
}

func Test_GetVolumesToAttach_Positive_TwoNodesOneVolumeEachExtraPod(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v1", "n1")
		w.add("p2", "v2", "n2")
		w.add("p3", "v2", "n2")
		w.add("p3", "v2", "n2")
		w.want("v1 n1: p1", "v2 n2: p2 p3")
	}, "n1", "n2")
}

func Test_GetVolumesToAttach_Positive_TwoNodesThreeVolumes(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v1", "n1")
		w.add("p2", "v2", "n2")
		w.add("p3", "v2", "n2")
		w.add("p4", "v3", "n1")
		w.want("v1 n1: p1", "v2 n2: p2 p3", "v3 n1: p4")
	}, "n1", "n2")
}

func Test_GetPodsOnNodes(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v1", "n1")
		w.add("p2", "v2", "n2")
		if got := uids(w.GetVolumePodsOnNodes([]string{"n1", "n2", "n3", "unknown"}, nameOf("v1"))); got != "p1" {
			t.Errorf("pods %q", got)
		}
	}, "n1", "n2", "n3")
}
