package differential

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8stypes "k8s.io/apimachinery/pkg/types"
	kubecache "k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"
	kubetypes "k8s.io/kubernetes/pkg/volume/util/types"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
)

// want is one operation on both desired states.
type want struct {
	Kind              string
	Volume, Node, Pod int
	// Nodes are those that pods are asked for; one of them is not managed.
	Nodes []int
	// Old is a pod object of the same UID and another version.
	Old bool
}

// desired are the two caches.
type desired struct {
	ours   cache.DesiredStateOfWorld
	theirs kubecache.DesiredStateOfWorld
}

func uidOf(i int) k8stypes.UID { return k8stypes.UID(fmt.Sprintf("pod-%d", i)) }

func podOf(w want) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uidOf(w.Pod), ResourceVersion: "new"}}
	if w.Old {
		pod.ResourceVersion = "old"
	}
	return pod
}

var desiredSequence = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) want {
	return want{
		Kind:   rapid.SampledFrom(keys(desiredOps)).Draw(t, "kind"),
		Volume: rapid.IntRange(0, volumes).Draw(t, "volume"),
		Node:   rapid.IntRange(0, nodes-1).Draw(t, "node"),
		Pod:    rapid.IntRange(0, pods-1).Draw(t, "pod"),
		Nodes:  rapid.SliceOfNDistinct(rapid.IntRange(0, nodes), 0, nodes, rapid.ID[int]).Draw(t, "nodes"),
		Old:    rapid.Bool().Draw(t, "old"),
	}
}), steps/2, steps)

// desiredOps are the operations of DesiredStateOfWorld by name.
var desiredOps = map[string]func(d *desired, w want) error{
	"add node": func(d *desired, w want) error {
		d.ours.AddNode(nodeOf(w.Node))
		d.theirs.AddNode(theirNode(w.Node))
		return nil
	},
	"delete node": func(d *desired, w want) error {
		return sameError(d.ours.DeleteNode(nodeOf(w.Node)), d.theirs.DeleteNode(theirNode(w.Node)))
	},
	"add pod": func(d *desired, w want) error {
		s, pod := specsOf(w.Volume), podOf(w)
		gotName, got := d.ours.AddPod(types.UniquePodName(pod.UID), pod, s.ours, nodeOf(w.Node))
		wantName, want := d.theirs.AddPod(kubetypes.UniquePodName(pod.UID), pod, s.theirs, theirNode(w.Node))
		return errors.Join(sameError(got, want), same(gotName, wantName))
	},
	"delete pod": func(d *desired, w want) error {
		d.ours.DeletePod(types.UniquePodName(uidOf(w.Pod)), nameOf(w.Volume), nodeOf(w.Node))
		d.theirs.DeletePod(kubetypes.UniquePodName(uidOf(w.Pod)), nameOf(w.Volume), theirNode(w.Node))
		return nil
	},
	"multi-attach error": func(d *desired, w want) error {
		d.ours.SetMultiAttachError(nameOf(w.Volume), nodeOf(w.Node))
		d.theirs.SetMultiAttachError(nameOf(w.Volume), theirNode(w.Node))
		return nil
	},
	"pods on nodes": func(d *desired, w want) error {
		var ours []string
		var theirs []k8stypes.NodeName
		for _, i := range w.Nodes {
			ours, theirs = append(ours, nodeOf(i)), append(theirs, theirNode(i))
		}
		return same(podNames(d.ours.GetVolumePodsOnNodes(ours, nameOf(w.Volume))), podNames(d.theirs.GetVolumePodsOnNodes(theirs, nameOf(w.Volume))))
	},
}

// podNames tell pods apart, and their versions.
func podNames(list []*v1.Pod) []string {
	all := make([]string, 0, len(list))
	for _, pod := range list {
		all = append(all, string(pod.UID)+" "+pod.ResourceVersion)
	}
	slices.Sort(all)
	return all
}

// runDesired does the operations on both and says where they first differ.
func runDesired(ours cache.DesiredStateOfWorld, theirs kubecache.DesiredStateOfWorld, ops []want) error {
	d := &desired{ours, theirs}
	for i, w := range ops {
		if err := desiredOps[w.Kind](d, w); err != nil {
			return fmt.Errorf("operation %d, %+v: %w", i, w, err)
		}
		if err := d.compare(); err != nil {
			return fmt.Errorf("after operation %d, %+v: %w", i, w, err)
		}
	}
	return nil
}

// compare looks at all that the caches show.
func (d *desired) compare() error {
	got, want := map[string][]string{}, map[string][]string{}
	for _, v := range d.ours.GetVolumesToAttach() {
		key := fmt.Sprintf("%s %s spec %s told %t", v.VolumeName, v.NodeName, v.VolumeSpec.Name(), d.ours.MultiAttachErrorReported(v.VolumeName, v.NodeName))
		got[key] = podNames(v.ScheduledPods)
	}
	for _, v := range d.theirs.GetVolumesToAttach() {
		key := fmt.Sprintf("%s %s spec %s told %t", v.VolumeName, v.NodeName, v.VolumeSpec.Name(), v.MultiAttachErrorReported)
		want[key] = podNames(v.ScheduledPods)
	}
	if err := same(got, want); err != nil {
		return fmt.Errorf("GetVolumesToAttach: %w", err)
	}
	for node := range nodes {
		if err := same(d.ours.NodeExists(nodeOf(node)), d.theirs.NodeExists(theirNode(node))); err != nil {
			return fmt.Errorf("NodeExists(%s): %w", nodeOf(node), err)
		}
		for volume := range volumes + 1 {
			if err := same(d.ours.VolumeExists(nameOf(volume), nodeOf(node)), d.theirs.VolumeExists(nameOf(volume), theirNode(node))); err != nil {
				return fmt.Errorf("VolumeExists(%d, %s): %w", volume, nodeOf(node), err)
			}
		}
	}
	return d.comparePods()
}

// comparePods compares which pods there are. Which of its volumes a pod comes
// with is left open on both sides, but it must be one.
func (d *desired) comparePods() error {
	var got, want []string
	for uid, p := range d.ours.GetPodToAdd() {
		got = append(got, string(uid)+" "+p.Pod.ResourceVersion)
		if !d.theirs.VolumeExists(p.VolumeName, k8stypes.NodeName(p.NodeName)) {
			return fmt.Errorf("GetPodToAdd tells of %s on %s, which is not to be attached", p.VolumeName, p.NodeName)
		}
	}
	for uid, p := range d.theirs.GetPodToAdd() {
		want = append(want, string(uid)+" "+p.Pod.ResourceVersion)
	}
	// A pod may be known by two versions, and each side names one of them.
	if err := same(len(got), len(want)); err != nil {
		return fmt.Errorf("GetPodToAdd: %w", err)
	}
	return nil
}
