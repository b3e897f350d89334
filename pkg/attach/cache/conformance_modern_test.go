package cache

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// The cases that only the tests of Kubernetes 1.37 have, under their names.

// confirmed are the nodes of the volume that are not uncertain, by both ways to
// ask.
func (w *world) wantConfirmed(handle string, nodes ...string) {
	w.t.Helper()
	got := w.GetNodesForAttachedVolume(nameOf(handle))
	slices.Sort(got)
	if !slices.Equal(got, nodes) {
		w.t.Errorf("%s is attached for certain to %v, want %v", handle, got, nodes)
	}
	perNode := w.GetAttachedVolumesPerNode()
	if len(perNode) != len(nodes) {
		w.t.Errorf("attached for certain: %v, want something on %v", perNode, nodes)
	}
	for _, node := range nodes {
		if l := perNode[node]; len(l) != 1 || l[0].VolumeName != nameOf(handle) || l[0].NodeName != node {
			w.t.Errorf("attached for certain to %s: %v", node, l)
		}
	}
}

func Test_AddVolumeNode_Positive_NewVolumeNewNodeWithFalseAttached(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.addAs("v", "n", dev, false)
		w.wantState("v", "n", AttachStateUncertain)
		w.want(entry{"v", "n", dev, w.assumed(), false})
		w.wantOn("n", entry{"v", "n", dev, w.assumed(), false})
		w.wantReport()
		w.wantConfirmed("v")

		w.addAs("v", "n", dev, true)
		w.wantState("v", "n", AttachStateAttached)
		w.want(entry{"v", "n", dev, w.assumed(), false})
		w.wantReport("n: [v=" + dev + "]")
		w.wantConfirmed("v", "n")
	})
}

func Test_AddVolumeNode_Positive_NewVolumeTwoNodesWithFalseAttached(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.addAs("v", "n1", dev, false)
		w.addAs("v", "n2", dev, true)
		w.wantState("v", "n1", AttachStateUncertain)
		w.wantState("v", "n2", AttachStateAttached)
		w.want(entry{"v", "n1", dev, w.assumed(), false}, entry{"v", "n2", dev, w.assumed(), false})
		w.wantReport("n2: [v=" + dev + "]")
		w.wantConfirmed("v", "n2")
	})
}

func Test_SetNodeStatusUpdateNeededError(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.fails(w.SetNodeStatusUpdateNeeded("n"))
		w.wantReport()
	})
}

func Test_updateNodeStatusUpdateNeeded(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.wantReport("n: [v=" + dev + "]")
		w.ok(w.ResetNodeStatusUpdateNeeded("n"))
		w.wantReport()
		w.ok(w.SetNodeStatusUpdateNeeded("n"))
		w.wantReport("n: [v=" + dev + "]")
	})
}

func Test_updateNodeStatusUpdateNeededError(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.fails(w.ResetNodeStatusUpdateNeeded("n"))
		w.addAs("v", "n", dev, false) // known, but not to the reports
		w.fails(w.ResetNodeStatusUpdateNeeded("n"))
		w.fails(w.SetNodeStatusUpdateNeeded("n"))
		w.wantReport()
	})
}

func Test_MarkVolumeAsUncertain(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.ok(w.MarkVolumeAsUncertain(nameOf("v"), specOf("v"), "n"))
		w.wantState("v", "n", AttachStateUncertain)
		w.want(entry{"v", "n", "", w.assumed(), false})
	})
}

func Test_GetVolumesToReportAttachedForNode_Positive(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.wantReportOf("n", true, "[v="+dev+"]")
		w.wantReportOf("n", false, "[]")
		w.unreport("v", "n")
		w.wantReportOf("n", true, "[]")
		w.wantReport()
	})
}

func Test_GetVolumesToReportAttachedForNode_UnknownNode(t *testing.T) {
	inBothModes(t, func(w *world) { w.wantReportOf("n", false, "[]") })
}

func (w *world) wantReportOf(node string, needed bool, list string) {
	w.t.Helper()
	got, volumes := w.GetVolumesToReportAttachedForNode(node)
	if got != needed || listText(volumes) != list || (volumes != nil) != needed {
		w.t.Errorf("report of %s: %v %v, want %v %s", node, got, volumes, needed, list)
	}
}

func (w *world) setAllMounted(node string, handles ...string) {
	var names []v1.UniqueVolumeName
	for _, h := range handles {
		names = append(names, nameOf(h))
	}
	w.SetVolumesMountedByNode(names, node)
}

func Test_SetVolumesMountedByNode_Positive_Set(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setAllMounted("n", "v")
		w.want(entry{"v", "n", dev, true, false})
	})
}

func Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSet(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setAllMounted("n", "v")
		w.setAllMounted("n")
		w.want(entry{"v", "n", dev, false, false})
	})
}

func Test_SetVolumesMountedByNode_Positive_UnsetWithoutInitialSet(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setAllMounted("n")
		w.want(entry{"v", "n", dev, false, false})
	})
}

func Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetAddVolumeNodeNotReset(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setAllMounted("n", "v")
		w.setAllMounted("n")
		w.add("v", "n", dev)
		w.want(entry{"v", "n", dev, false, false})
	})
}

func Test_SetVolumesMountedByNode_Positive_UnsetWithInitialSetVerifyDetachRequestedTimePerserved(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.detachRequested("v", "n")
		w.unreport("v", "n")
		before := w.GetAttachedVolumes()[0].DetachRequestedTime
		w.setAllMounted("n", "v")
		w.setAllMounted("n")
		w.want(entry{"v", "n", dev, false, true})
		if after := w.GetAttachedVolumes()[0].DetachRequestedTime; !after.Equal(before) {
			t.Errorf("the request moved from %v to %v", before, after)
		}
	})
}

func Test_RemoveVolumeFromReportAsAttached_Positive_UnsetWithInitialSetVolumesMountedByNodePreserved(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setAllMounted("n", "v")
		w.setAllMounted("n")
		w.detachRequested("v", "n")
		w.unreport("v", "n")
		w.want(entry{"v", "n", dev, false, true})
	})
}
