package cache

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// The cases of Kubernetes' own tests of 1.4 and 1.37, under their names.

func Test_AddVolumeNode_Positive_NewVolumeNewNode(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.wantState("v", "n", AttachStateAttached)
		w.want(entry{"v", "n", dev, w.assumed(), false})
	})
}

func Test_AddVolumeNode_Positive_ExistingVolumeNewNode(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n1", dev)
		w.add("v", "n2", dev)
		w.wantState("v", "n1", AttachStateAttached)
		w.wantState("v", "n2", AttachStateAttached)
		w.want(entry{"v", "n1", dev, w.assumed(), false}, entry{"v", "n2", dev, w.assumed(), false})
	})
}

func Test_AddVolumeNode_Positive_ExistingVolumeExistingNode(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.add("v", "n", dev)
		w.want(entry{"v", "n", dev, w.assumed(), false})
	})
}

func Test_DeleteVolumeNode_Positive_VolumeExistsNodeExists(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.DeleteVolumeNode(nameOf("v"), "n")
		w.wantState("v", "n", AttachStateDetached)
		w.want()
		w.wantOn("n")
	})
}

func Test_DeleteVolumeNode_Positive_VolumeDoesntExistNodeDoesntExist(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.DeleteVolumeNode(nameOf("v"), "n")
		w.wantState("v", "n", AttachStateDetached)
		w.want()
	})
}

func Test_DeleteVolumeNode_Positive_TwoNodesOneDeleted(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n1", dev)
		w.add("v", "n2", dev)
		w.DeleteVolumeNode(nameOf("v"), "n1")
		w.wantState("v", "n1", AttachStateDetached)
		w.wantState("v", "n2", AttachStateAttached)
		w.want(entry{"v", "n2", dev, w.assumed(), false})
	})
}

func Test_VolumeNodeExists_Positive_VolumeExistsNodeExists(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.wantState("v", "n", AttachStateAttached)
		w.want(entry{"v", "n", dev, w.assumed(), false})
	})
}

func Test_VolumeNodeExists_Positive_VolumeExistsNodeDoesntExist(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n1", dev)
		w.wantState("v", "n2", AttachStateDetached)
		w.want(entry{"v", "n1", dev, w.assumed(), false})
	})
}

func Test_VolumeNodeExists_Positive_VolumeAndNodeDontExist(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.wantState("v", "n", AttachStateDetached)
		w.want()
	})
}

func Test_GetAttachedVolumes_Positive_NoVolumesOrNodes(t *testing.T) {
	inBothModes(t, func(w *world) { w.want() })
}

func Test_GetAttachedVolumes_Positive_OneVolumeOneNode(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.want(entry{"v", "n", dev, w.assumed(), false})
	})
}

func Test_GetAttachedVolumes_Positive_TwoVolumeTwoNodes(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v1", "n1", dev)
		w.add("v2", "n2", dev)
		w.want(entry{"v1", "n1", dev, w.assumed(), false}, entry{"v2", "n2", dev, w.assumed(), false})
	})
}

func Test_GetAttachedVolumes_Positive_OneVolumeTwoNodes(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n1", dev)
		w.add("v", "n2", dev)
		w.want(entry{"v", "n1", dev, w.assumed(), false}, entry{"v", "n2", dev, w.assumed(), false})
	})
}

func Test_SetVolumeMountedByNode_Positive_Set(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.want(entry{"v", "n", dev, w.assumed(), false})
		w.setMounted("v", "n", true)
		w.want(entry{"v", "n", dev, true, false})
	})
}

func Test_SetVolumeMountedByNode_Positive_UnsetWithInitialSet(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setMounted("v", "n", true)
		w.setMounted("v", "n", false)
		w.want(entry{"v", "n", dev, false, false})
	})
}

// The mode decides: to the seed, what was never mounted is.
func Test_SetVolumeMountedByNode_Positive_UnsetWithoutInitialSet(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setMounted("v", "n", false)
		w.want(entry{"v", "n", dev, w.mode == Seed, false})
	})
}

func Test_SetVolumeMountedByNode_Positive_UnsetWithInitialSetAddVolumeNodeNotReset(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setMounted("v", "n", true)
		w.setMounted("v", "n", false)
		w.add("v", "n", dev)
		w.want(entry{"v", "n", dev, false, false})
	})
}

func Test_SetVolumeMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.detachRequested("v", "n")
		w.unreport("v", "n")
		before := w.GetAttachedVolumes()[0].DetachRequestedTime
		w.clock.SetTime(w.clock.Now().Add(time.Minute))
		w.setMounted("v", "n", true)
		w.setMounted("v", "n", false)
		w.want(entry{"v", "n", dev, false, true})
		if after := w.GetAttachedVolumes()[0].DetachRequestedTime; !after.Equal(before) {
			t.Errorf("the request moved from %v to %v", before, after)
		}
	})
}

func Test_RemoveVolumeFromReportAsAttached_Positive_Set(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.want(entry{"v", "n", dev, w.assumed(), false})
	})
}

func Test_RemoveVolumeFromReportAsAttached_Positive_Marked(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.detachRequested("v", "n")
		w.unreport("v", "n")
		w.want(entry{"v", "n", dev, w.assumed(), true})
	})
}

func Test_MarkDesireToDetach_Positive_MarkedAddVolumeNodeReset(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.detachRequested("v", "n")
		w.unreport("v", "n")
		w.ResetDetachRequestTime(nameOf("v"), "n")
		w.ResetDetachRequestTime(nameOf("v"), "other")
		w.AddVolumeToReportAsAttached(nameOf("v"), "n")
		w.want(entry{"v", "n", dev, w.assumed(), false})
	})
}

func Test_RemoveVolumeFromReportAsAttached_Positive_UnsetWithInitialSetVolumeMountedByNodePreserved(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setMounted("v", "n", true)
		w.setMounted("v", "n", false)
		w.detachRequested("v", "n")
		w.unreport("v", "n")
		w.want(entry{"v", "n", dev, false, true})
	})
}

func Test_RemoveVolumeFromReportAsAttached(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.unreport("v", "n")
		w.wantReport("n: []")
	})
}

func Test_RemoveVolumeFromReportAsAttached_AddVolumeToReportAsAttached_Positive(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.unreport("v", "n")
		w.wantReport("n: []")
		w.AddVolumeToReportAsAttached(nameOf("v"), "n")
		w.wantReport("n: [v=" + dev + "]")
	})
}

func Test_RemoveVolumeFromReportAsAttached_Delete_AddVolumeNode(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.unreport("v", "n")
		w.wantReport("n: []")
		w.DeleteVolumeNode(nameOf("v"), "n")
		w.add("v", "n", "")
		w.wantReport("n: [v=]")
	})
}

func Test_SetDetachRequestTime_Positive(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		begun := w.clock.Now()
		if got := w.detachRequested("v", "n"); got != 0 {
			t.Errorf("%v have passed at once", got)
		}
		w.clock.SetTime(begun.Add(time.Second))
		if got := w.detachRequested("v", "n"); got != time.Second {
			t.Errorf("%v have passed after a second", got)
		}
		if got := w.GetAttachedVolumes()[0].DetachRequestedTime; !got.Equal(begun) {
			t.Errorf("requested at %v, want %v", got, begun)
		}
	})
}

func Test_GetAttachedVolumesForNode_Positive_NoVolumesOrNodes(t *testing.T) {
	inBothModes(t, func(w *world) { w.wantOn("n") })
}

func Test_GetAttachedVolumesForNode_Positive_OneVolumeOneNode(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.wantOn("n", entry{"v", "n", dev, w.assumed(), false})
	})
}

func Test_GetAttachedVolumesForNode_Positive_TwoVolumeTwoNodes(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v1", "n1", dev)
		w.add("v2", "n2", dev)
		w.wantOn("n2", entry{"v2", "n2", dev, w.assumed(), false})
	})
}

func Test_GetAttachedVolumesForNode_Positive_OneVolumeTwoNodes(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n1", dev)
		w.add("v", "n2", dev)
		w.wantOn("n1", entry{"v", "n1", dev, w.assumed(), false})
	})
}

// The mode decides: the seed has one device path for all nodes of a volume.
func Test_OneVolumeTwoNodes_TwoDevicePaths(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n1", "dev1")
		w.add("v", "n2", "dev2")
		w.wantOn("n2", entry{"v", "n2", "dev2", w.assumed(), false})
		first := map[Mode]string{Seed: "dev2", Modern: "dev1"}[w.mode]
		w.wantOn("n1", entry{"v", "n1", first, w.assumed(), false})
		w.wantReport("n1: [v="+first+"]", "n2: [v=dev2]")
		w.add("v", "n1", "dev3")
		second := map[Mode]string{Seed: "dev3", Modern: "dev2"}[w.mode]
		w.wantOn("n2", entry{"v", "n2", second, w.assumed(), false})
	})
}

func Test_MarkVolumeAsAttached(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.ok(w.MarkVolumeAsAttached(nameOf("v"), specOf("v"), "n", dev))
		w.wantState("v", "n", AttachStateAttached)
		w.want(entry{"v", "n", dev, w.assumed(), false})
		w.wantReport("n: [v=" + dev + "]")
		w.MarkVolumeAsDetached(nameOf("v"), "n")
		w.wantState("v", "n", AttachStateDetached)
	})
}

// The mode decides: the seed names the volume by its spec alone.
func TestMarkVolumeAsAttachedByAnotherName(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.ok(w.MarkVolumeAsAttached(nameOf("other"), specOf("v"), "n", dev))
		want := map[Mode]v1.UniqueVolumeName{Seed: nameOf("v"), Modern: nameOf("other")}[w.mode]
		if got := w.GetAttachedVolumes()[0].VolumeName; got != want {
			t.Errorf("named %s, want %s", got, want)
		}
		err := w.MarkVolumeAsAttached(nameOf("v"), nil, "n2", dev)
		if (err != nil) != (w.mode == Seed) {
			t.Errorf("without a spec: error %v", err)
		}
	})
}
