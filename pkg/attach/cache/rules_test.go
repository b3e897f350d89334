package cache

import (
	"maps"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Rules that Kubernetes' own tests do not cover.

func TestAddVolumeNodeNotAttachable(t *testing.T) {
	inBothModes(t, func(w *world) {
		other := specOf("v")
		other.PersistentVolume.Spec.CSI.Driver = "other.example"
		for _, spec := range []*volume.Spec{nil, {}, other} {
			name, err := w.AddVolumeNode(spec, "n", dev)
			if w.fails(err); name != "" {
				t.Errorf("named %s", name)
			}
			w.fails(w.MarkVolumeAsAttached("", spec, "n", dev))
			w.fails(w.MarkVolumeAsUncertain("", spec, "n"))
		}
		w.want()
		w.wantReport()
	})
}

// TestMissingPair: each method that names a pair, where there is none, or only
// its volume, or only its node.
func TestMissingPair(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.add("v2", "n2", dev)
		w.wantReport("n: [v="+dev+"]", "n2: [v2="+dev+"]")
		w.ok(w.ResetNodeStatusUpdateNeeded("n"))
		w.ok(w.ResetNodeStatusUpdateNeeded("n2"))
		for _, pair := range [][2]string{{"x", "x"}, {"v", "x"}, {"x", "n"}, {"v", "n2"}} {
			name, node := nameOf(pair[0]), pair[1]
			w.fails(w.SetVolumeMountedByNode(name, node, true))
			w.fails(w.SetVolumeMountedByNode(name, node, false))
			elapsed, err := w.SetDetachRequestTime(name, node)
			if w.fails(err); elapsed != 0 {
				t.Errorf("%v have passed", elapsed)
			}
			w.ResetDetachRequestTime(name, node)
			w.fails(w.RemoveVolumeFromReportAsAttached(name, node))
			w.AddVolumeToReportAsAttached(name, node)
			w.DeleteVolumeNode(name, node)
			w.wantState(pair[0], node, AttachStateDetached)
		}
		w.want(entry{"v", "n", dev, w.assumed(), false}, entry{"v2", "n2", dev, w.assumed(), false})
		w.wantReport()
	})
}

// TestRemovedFromReportTwice: the second time is an error, and flags nothing.
func TestRemovedFromReportTwice(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.unreport("v", "n")
		w.wantReport("n: []")
		w.ok(w.ResetNodeStatusUpdateNeeded("n"))
		w.fails(w.RemoveVolumeFromReportAsAttached(nameOf("v"), "n"))
		w.DeleteVolumeNode(nameOf("v"), "n")
		w.wantReport()
	})
}

// TestAddedToReportTwice: what is reported already flags nothing.
func TestAddedToReportTwice(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.wantReport("n: [v=" + dev + "]")
		w.ok(w.ResetNodeStatusUpdateNeeded("n"))
		w.AddVolumeToReportAsAttached(nameOf("v"), "n")
		w.add("v", "n", dev)
		w.wantReport()
	})
}

// TestUnknownNodeStaysUnknown: SetNodeStatusUpdateNeeded of Kubernetes 1.5
// stored an entry without a map, and the next add to that node panicked.
func TestUnknownNodeStaysUnknown(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.fails(w.SetNodeStatusUpdateNeeded("n"))
		w.fails(w.SetNodeStatusUpdateNeeded("n"))
		w.add("v", "n", dev)
		w.wantReport("n: [v=" + dev + "]")
	})
}

// TestAddedWhileReported: a volume that is added while the node's status is
// being written. The seed loses it, Modern does not.
func TestAddedWhileReported(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v1", "n", dev)
		w.wantReport("n: [v1=" + dev + "]")
		w.add("v2", "n", dev)
		w.ok(w.ResetNodeStatusUpdateNeeded("n"))
		if w.mode == Seed {
			w.wantReport()
		} else {
			w.wantReport("n: [v1=" + dev + " v2=" + dev + "]")
		}
	})
}

// TestReportComesAgain: the seed repeats a report until it is told that it was
// written; Modern gives it once.
func TestReportComesAgain(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.wantReport("n: [v=" + dev + "]")
		if w.mode == Seed {
			w.wantReport("n: [v=" + dev + "]")
		} else {
			w.wantReport()
			w.ok(w.SetNodeStatusUpdateNeeded("n")) // the write failed
			w.wantReport("n: [v=" + dev + "]")
		}
	})
}

// TestReportOfAnEmptyNode: that nothing is attached has to be written, too, and
// again if that fails.
func TestReportOfAnEmptyNode(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.ok(w.ResetNodeStatusUpdateNeeded("n"))
		w.DeleteVolumeNode(nameOf("v"), "n")
		w.wantReport("n: []")
		w.ok(w.ResetNodeStatusUpdateNeeded("n"))
		w.ok(w.SetNodeStatusUpdateNeeded("n"))
		w.wantReport("n: []")
	})
}

// TestUncertainStaysReported: a pair that becomes uncertain is on its node's
// list until it is taken off.
func TestUncertainStaysReported(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.ok(w.MarkVolumeAsUncertain(nameOf("v"), nil, "n"))
		w.wantState("v", "n", AttachStateUncertain)
		w.wantConfirmed("v")
		w.want(entry{"v", "n", "", w.assumed(), false}) // with the spec of before
		w.wantReport("n: [v=]")
		w.unreport("v", "n")
		w.wantReport("n: []")
	})
}

// TestWhatANodeSaysComesFirst: Modern takes a list for what is not attached yet,
// and keeps it for what is detached and attached again.
func TestWhatANodeSaysComesFirst(t *testing.T) {
	w := newWorld(t, Modern)
	w.setAllMounted("n") // of a node without anything nothing is kept
	w.setAllMounted("n", "v1", "v2")
	w.add("v1", "n", dev)
	w.add("v3", "n", dev)
	w.want(entry{"v1", "n", dev, true, false}, entry{"v3", "n", dev, false, false})
	w.DeleteVolumeNode(nameOf("v1"), "n")
	w.add("v1", "n", dev)
	w.want(entry{"v1", "n", dev, true, false}, entry{"v3", "n", dev, false, false})
	w.setAllMounted("n")
	w.add("v2", "n", dev)
	w.want(entry{"v1", "n", dev, false, false}, entry{"v2", "n", dev, false, false}, entry{"v3", "n", dev, false, false})
}

// TestWhatIsSaidOfAPairEndsWithIt, unless it was said of the node.
func TestWhatIsSaidOfAPairEndsWithIt(t *testing.T) {
	w := newWorld(t, Modern)
	w.add("v", "n", dev)
	w.setMounted("v", "n", true)
	w.DeleteVolumeNode(nameOf("v"), "n")
	w.add("v", "n", dev)
	w.want(entry{"v", "n", dev, false, false})
	w.setAllMounted("n", "v")
	w.setMounted("v", "n", false)
	w.DeleteVolumeNode(nameOf("v"), "n")
	w.add("v", "n", dev)
	w.want(entry{"v", "n", dev, false, false})
}

// TestSeedListThenUnset: in mode Seed a list counts as a word of the node.
func TestSeedListThenUnset(t *testing.T) {
	w := newWorld(t, Seed)
	w.setAllMounted("n", "v") // too early for the seed
	w.add("v", "n", dev)
	w.setAllMounted("n", "v")
	w.setMounted("v", "n", false)
	w.want(entry{"v", "n", dev, false, false})
}

// TestNothingOfAPairOutlivesIt: a pair that is deleted and added again is new.
func TestNothingOfAPairOutlivesIt(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		w.setMounted("v", "n", !w.assumed())
		w.detachRequested("v", "n")
		w.DeleteVolumeNode(nameOf("v"), "n")
		w.clock.SetTime(w.clock.Now().Add(time.Hour))
		w.add("v", "n", "")
		w.want(entry{"v", "n", "", w.assumed(), false})
	})
}

// TestResultsAreTheCallers: what a caller does with a result changes nothing.
func TestResultsAreTheCallers(t *testing.T) {
	inBothModes(t, func(w *world) {
		w.add("v", "n", dev)
		report := w.GetVolumesToReportAttached()
		report["n"][0] = v1.AttachedVolume{}
		maps.DeleteFunc(report, func(string, []v1.AttachedVolume) bool { return true })
		w.GetAttachedVolumes()[0].NodeName = "x"
		w.GetAttachedVolumesForNode("n")[0].NodeName = "x"
		w.GetAttachedVolumesPerNode()["n"][0].NodeName = "x"
		w.GetNodesForAttachedVolume(nameOf("v"))[0] = "x"
		w.ok(w.SetNodeStatusUpdateNeeded("n"))
		w.want(entry{"v", "n", dev, w.assumed(), false})
		w.wantReport("n: [v=" + dev + "]")
		w.wantConfirmed("v", "n")
	})
}

// TestManyNodes: a volume on many nodes goes through all its representations.
func TestManyNodes(t *testing.T) {
	inBothModes(t, func(w *world) {
		nodes := []string{"n1", "n2", "n3", "n4"}
		for range 2 {
			for _, n := range nodes {
				w.add("v", n, dev)
			}
			for i, n := range nodes {
				var left []entry
				for _, n := range nodes[i:] {
					left = append(left, entry{"v", n, dev, w.assumed(), false})
				}
				w.want(left...)
				w.DeleteVolumeNode(nameOf("v"), n)
			}
			w.want()
		}
	})
}
