package cache

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	driver = "csi.example"
	dev    = "fake/device/path"
)

var modeNames = map[Mode]string{Seed: "Seed", Modern: "Modern"}

func specOf(handle string) *volume.Spec {
	return &volume.Spec{PersistentVolume: &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + handle},
		Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
			CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle},
		}},
	}}
}

func nameOf(handle string) v1.UniqueVolumeName {
	return volume.UniqueName(driver, volume.Handle(handle))
}

// world is an ActualStateOfWorld with a clock, and what tests ask of it.
type world struct {
	ActualStateOfWorld
	t     *testing.T
	mode  Mode
	clock *testingclock.FakePassiveClock
}

func newWorld(t *testing.T, mode Mode) *world {
	c := testingclock.NewFakePassiveClock(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	return &world{NewActualStateOfWorld(volume.NewVolumePluginMgr(driver), WithMode(mode), WithClock(c)), t, mode, c}
}

// inBothModes runs a case of the conformance list in each mode.
func inBothModes(t *testing.T, f func(w *world)) {
	for _, mode := range []Mode{Seed, Modern} {
		t.Run(modeNames[mode], func(t *testing.T) { f(newWorld(t, mode)) })
	}
}

// assumed is MountedByNode of a new pair.
func (w *world) assumed() bool { return w.mode == Seed }

func (w *world) add(handle, node, devicePath string) {
	w.t.Helper()
	got, err := w.AddVolumeNode(specOf(handle), node, devicePath)
	if err != nil || got != nameOf(handle) {
		w.t.Fatalf("AddVolumeNode is %q, %v", got, err)
	}
}

func (w *world) addAs(handle, node, devicePath string, attached bool) {
	w.t.Helper()
	got, err := w.AddVolumeNodeAs("", specOf(handle), node, devicePath, attached)
	if err != nil || got != nameOf(handle) {
		w.t.Fatalf("AddVolumeNodeAs is %q, %v", got, err)
	}
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) fails(err error) {
	w.t.Helper()
	if err == nil {
		w.t.Error("no error")
	}
}

func (w *world) setMounted(handle, node string, mounted bool) {
	w.t.Helper()
	w.ok(w.SetVolumeMountedByNode(nameOf(handle), node, mounted))
}

func (w *world) detachRequested(handle, node string) time.Duration {
	w.t.Helper()
	elapsed, err := w.SetDetachRequestTime(nameOf(handle), node)
	w.ok(err)
	return elapsed
}

func (w *world) unreport(handle, node string) {
	w.t.Helper()
	w.ok(w.RemoveVolumeFromReportAsAttached(nameOf(handle), node))
}

// entry is what AttachedVolume says, but for what is the same for all.
type entry struct {
	handle, node, dev string
	mounted, timer    bool
}

func (w *world) wantState(handle, node string, want AttachState) {
	w.t.Helper()
	if got := w.GetAttachState(nameOf(handle), node); got != want {
		w.t.Errorf("%s on %s is in state %v, want %v", handle, node, got, want)
	}
	if got := w.VolumeNodeExists(nameOf(handle), node); got != (want != AttachStateDetached) {
		w.t.Errorf("that %s on %s exists is %v", handle, node, got)
	}
}

func (w *world) want(entries ...entry) {
	w.t.Helper()
	w.wantList("attached", w.GetAttachedVolumes(), entries)
}

func (w *world) wantOn(node string, entries ...entry) {
	w.t.Helper()
	w.wantList("attached to "+node, w.GetAttachedVolumesForNode(node), entries)
}

func (w *world) wantList(what string, got []AttachedVolume, want []entry) {
	w.t.Helper()
	entries := make([]entry, 0, len(got))
	for _, a := range got {
		handle := a.VolumeSpec.PersistentVolume.Spec.CSI.VolumeHandle
		entries = append(entries, entry{handle, a.NodeName, a.DevicePath, a.MountedByNode, !a.DetachRequestedTime.IsZero()})
		if a.VolumeName != nameOf(handle) || !a.PluginIsAttachable {
			w.t.Errorf("%s is named %s, attachable %v", handle, a.VolumeName, a.PluginIsAttachable)
		}
	}
	if got == nil {
		w.t.Errorf("%s is nil", what)
	}
	byKey := func(a, b entry) int { return cmp.Compare(a.handle+" "+a.node, b.handle+" "+b.node) }
	slices.SortFunc(entries, byKey)
	want = slices.SortedFunc(slices.Values(want), byKey)
	if !slices.Equal(entries, want) {
		w.t.Errorf("%s: %v, want %v", what, entries, want)
	}
}

// reportText makes a report comparable: "node: volume=device, ...".
func reportText(report map[string][]v1.AttachedVolume) []string {
	var lines []string
	for _, node := range slices.Sorted(maps.Keys(report)) {
		lines = append(lines, node+": "+listText(report[node]))
	}
	return lines
}

func listText(list []v1.AttachedVolume) string {
	var volumes []string
	for _, v := range list {
		volumes = append(volumes, fmt.Sprintf("%s=%s", v.Name[len("kubernetes.io/csi/"+driver+"^"):], v.DevicePath))
	}
	slices.Sort(volumes)
	return fmt.Sprint(volumes)
}

// wantReport compares what is to be reported. A node's line is "n: [v=dev]".
func (w *world) wantReport(lines ...string) {
	w.t.Helper()
	got := w.GetVolumesToReportAttached()
	for node, list := range got {
		if list == nil {
			w.t.Errorf("the list of %s is nil, and would not be written", node)
		}
	}
	if diff := gocmp.Diff(lines, reportText(got)); diff != "" {
		w.t.Errorf("report (-want +got):\n%s", diff)
	}
}
