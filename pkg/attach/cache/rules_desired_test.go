package cache

import (
	"testing"

	v1 "k8s.io/api/core/v1"
)

// Rules of the desired state that Kubernetes' own tests do not cover.

func TestAddPodNotAttachable(t *testing.T) {
	desired(t, func(w *wish) {
		other := specOf("v")
		other.PersistentVolume.Spec.CSI = nil
		if name, err := w.AddPod("p", podOf("p"), other, "n"); err == nil || name != "" {
			t.Errorf("name %q, error %v", name, err)
		}
		w.want()
		w.wantPods()
		if err := w.DeleteNode("n"); err != nil {
			t.Error(err)
		}
	}, "n")
}

// TestPodWithManyVolumes: GetPodToAdd has one of its volumes at a time, so that
// whoever deletes what it names is done after as many passes.
func TestPodWithManyVolumes(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v1", "n")
		w.add("p", "v2", "n")
		w.add("p", "v3", "n")
		for pass := range 3 {
			w.wantPods("p")
			for name, p := range w.GetPodToAdd() {
				w.DeletePod(name, p.VolumeName, p.NodeName)
			}
			if got := len(w.GetVolumesToAttach()); got != 2-pass {
				t.Errorf("%d volumes after pass %d", got, pass)
			}
		}
		w.wantPods()
		w.wantNode("n", true)
	}, "n")
}

func TestMultiAttachError(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p", "v", "n1")
		w.add("p", "v", "n2")
		for _, pair := range [][2]string{{"v", "n1"}, {"v", "x"}, {"x", "n1"}} {
			w.SetMultiAttachError(nameOf(pair[0]), pair[1])
		}
		for pair, want := range map[[2]string]bool{{"v", "n1"}: true, {"v", "n2"}: false, {"v", "x"}: false, {"x", "n1"}: false} {
			if got := w.MultiAttachErrorReported(nameOf(pair[0]), pair[1]); got != want {
				t.Errorf("of %v it was told: %v", pair, got)
			}
		}
		w.wantNode("x", false)
		w.remove("p", "v", "n1")
		w.add("p", "v", "n1")
		if w.MultiAttachErrorReported(nameOf("v"), "n1") {
			t.Error("it outlives the volume")
		}
	}, "n1", "n2")
}

func TestPodsOfAVolumeOnSeveralNodes(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v", "n1")
		w.add("p2", "v", "n1")
		w.add("p3", "v", "n2")
		if got := uids(w.GetVolumePodsOnNodes([]string{"n1", "n2"}, nameOf("v"))); got != "p1 p2 p3" {
			t.Errorf("pods %q", got)
		}
		if got := w.GetVolumePodsOnNodes(nil, nameOf("v")); got == nil || len(got) != 0 {
			t.Errorf("pods %v on no nodes", got)
		}
	}, "n1", "n2")
}

// TestDesiredResultsAreTheCallers: what a caller does with a result changes
// nothing, and a change does nothing to an earlier result.
func TestDesiredResultsAreTheCallers(t *testing.T) {
	desired(t, func(w *wish) {
		w.add("p1", "v", "n")
		w.add("p2", "v", "n")
		before := w.GetVolumesToAttach()[0].ScheduledPods
		pods := w.GetVolumePodsOnNodes([]string{"n"}, nameOf("v"))
		w.remove("p1", "v", "n")
		for _, got := range [][]*v1.Pod{before, pods} {
			if uids(got) != "p1 p2" {
				t.Errorf("an earlier result became %q", uids(got))
			}
			got[0], got[1] = podOf("x"), podOf("x")
		}
		clear(w.GetPodToAdd())
		w.want("v n: p2")
	}, "n")
}
