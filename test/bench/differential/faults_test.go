package differential

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	kubecache "k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// within is in how many sequences a planted fault must show.
const within = 100

// planted are faults of an actual state, by embedding a sound one.
var planted = map[string]func(cache.ActualStateOfWorld) cache.ActualStateOfWorld{
	"an uncertain pair is reported":          func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return reportsUncertain{w} },
	"an uncertain pair counts as attached":   func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return uncertainIsAttached{w} },
	"one node's report takes the others'":    func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return losesFlags{w} },
	"a failed write is not reported again":   func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return forgetsFlag{w} },
	"a detach request begins anew each time": func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return restartsRequest{w} },
	"a detach request cannot be ended":       func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return keepsRequest{w} },
	"an uncertain pair is not noted":         func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return staysCertain{w} },
	"unreporting twice is no error":          func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return unreportsTwice{w} },
	"the node's list is added to":            func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return &addsToList{w, nil} },
	"a pair is deleted on all nodes":         func(w cache.ActualStateOfWorld) cache.ActualStateOfWorld { return deletesAll{w} },
}

type (
	reportsUncertain    struct{ cache.ActualStateOfWorld }
	uncertainIsAttached struct{ cache.ActualStateOfWorld }
	losesFlags          struct{ cache.ActualStateOfWorld }
	forgetsFlag         struct{ cache.ActualStateOfWorld }
	restartsRequest     struct{ cache.ActualStateOfWorld }
	keepsRequest        struct{ cache.ActualStateOfWorld }
	staysCertain        struct{ cache.ActualStateOfWorld }
	unreportsTwice      struct{ cache.ActualStateOfWorld }
	deletesAll          struct{ cache.ActualStateOfWorld }
)

func (f reportsUncertain) AddVolumeNodeAs(name v1.UniqueVolumeName, spec *volume.Spec, node, path string, attached bool) (v1.UniqueVolumeName, error) {
	got, err := f.ActualStateOfWorld.AddVolumeNodeAs(name, spec, node, path, attached)
	f.AddVolumeToReportAsAttached(got, node)
	return got, err
}

func (f uncertainIsAttached) GetNodesForAttachedVolume(name v1.UniqueVolumeName) (all []string) {
	for i := range nodes {
		if f.VolumeNodeExists(name, nodeOf(i)) {
			all = append(all, nodeOf(i))
		}
	}
	return all
}

func (f losesFlags) GetVolumesToReportAttachedForNode(node string) (bool, []v1.AttachedVolume) {
	list, ok := f.GetVolumesToReportAttached()[node]
	return ok, list
}

func (forgetsFlag) SetNodeStatusUpdateNeeded(string) error { return nil }

func (f restartsRequest) SetDetachRequestTime(name v1.UniqueVolumeName, node string) (time.Duration, error) {
	f.ResetDetachRequestTime(name, node)
	return f.ActualStateOfWorld.SetDetachRequestTime(name, node)
}

func (keepsRequest) ResetDetachRequestTime(v1.UniqueVolumeName, string) {}

func (f staysCertain) MarkVolumeAsUncertain(name v1.UniqueVolumeName, spec *volume.Spec, node string) error {
	if f.VolumeNodeExists(name, node) {
		return nil
	}
	return f.ActualStateOfWorld.MarkVolumeAsUncertain(name, spec, node)
}

func (f unreportsTwice) RemoveVolumeFromReportAsAttached(name v1.UniqueVolumeName, node string) error {
	_ = f.ActualStateOfWorld.RemoveVolumeFromReportAsAttached(name, node)
	return nil
}

type addsToList struct {
	cache.ActualStateOfWorld
	told []v1.UniqueVolumeName
}

func (f *addsToList) SetVolumesMountedByNode(names []v1.UniqueVolumeName, node string) {
	f.told = append(f.told, names...)
	f.ActualStateOfWorld.SetVolumesMountedByNode(f.told, node)
}

func (f deletesAll) DeleteVolumeNode(name v1.UniqueVolumeName, _ string) {
	for i := range nodes {
		f.ActualStateOfWorld.DeleteVolumeNode(name, nodeOf(i))
	}
}

// TestActualFindsFaults: each planted fault shows within some sequences.
func TestActualFindsFaults(t *testing.T) {
	for name, plant := range planted {
		t.Run(name, func(t *testing.T) {
			for seed := range within {
				ops, theirs := actualSequence.Example(seed), kubecache.NewActualStateOfWorld(theirManager(t))
				if err := inBubble(t, func() error { return runActual(plant(ourActual()), theirs, ops) }); err != nil {
					return
				}
			}
			t.Errorf("the fault shows in none of %d sequences", within)
		})
	}
}

// plantedDesired are faults of a desired state.
var plantedDesired = map[string]func(cache.DesiredStateOfWorld) cache.DesiredStateOfWorld{
	"a node goes with its volumes":       func(w cache.DesiredStateOfWorld) cache.DesiredStateOfWorld { return dropsNode{w} },
	"a pod makes its node managed":       func(w cache.DesiredStateOfWorld) cache.DesiredStateOfWorld { return addsNode{w} },
	"the first pod takes the volume":     func(w cache.DesiredStateOfWorld) cache.DesiredStateOfWorld { return dropsVolume{w} },
	"a multi-attach error is not noted":  func(w cache.DesiredStateOfWorld) cache.DesiredStateOfWorld { return forgetsError{w} },
	"pods of other nodes are not listed": func(w cache.DesiredStateOfWorld) cache.DesiredStateOfWorld { return firstNode{w} },
}

type (
	dropsNode    struct{ cache.DesiredStateOfWorld }
	addsNode     struct{ cache.DesiredStateOfWorld }
	dropsVolume  struct{ cache.DesiredStateOfWorld }
	forgetsError struct{ cache.DesiredStateOfWorld }
	firstNode    struct{ cache.DesiredStateOfWorld }
)

func (f dropsNode) DeleteNode(node string) error {
	for uid, p := range f.GetPodToAdd() {
		if p.NodeName == node {
			f.DeletePod(uid, p.VolumeName, node)
		}
	}
	return f.DesiredStateOfWorld.DeleteNode(node)
}

func (f addsNode) AddPod(name types.UniquePodName, pod *v1.Pod, spec *volume.Spec, node string) (v1.UniqueVolumeName, error) {
	f.AddNode(node)
	return f.DesiredStateOfWorld.AddPod(name, pod, spec, node)
}

func (f dropsVolume) DeletePod(_ types.UniquePodName, name v1.UniqueVolumeName, node string) {
	for i := range pods {
		f.DesiredStateOfWorld.DeletePod(types.UniquePodName(uidOf(i)), name, node)
	}
}

func (forgetsError) SetMultiAttachError(v1.UniqueVolumeName, string) {}

func (f firstNode) GetVolumePodsOnNodes(names []string, volumeName v1.UniqueVolumeName) []*v1.Pod {
	return f.DesiredStateOfWorld.GetVolumePodsOnNodes(names[:min(1, len(names))], volumeName)
}

func TestDesiredFindsFaults(t *testing.T) {
	for name, plant := range plantedDesired {
		t.Run(name, func(t *testing.T) {
			for seed := range within {
				if err := runDesired(plant(cache.NewDesiredStateOfWorld(ourManager())), kubecache.NewDesiredStateOfWorld(theirManager(t)), desiredSequence.Example(seed)); err != nil {
					return
				}
			}
			t.Errorf("the fault shows in none of %d sequences", within)
		})
	}
}
