package hacontroller

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// apply does to node what the API server does with a patch of ours.
func apply(t *testing.T, node *v1.Node, p *nodePatch) *v1.Node {
	t.Helper()
	out, err := tryApply(t, node, p)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryApply(t *testing.T, node *v1.Node, p *nodePatch) (*v1.Node, error) {
	t.Helper()
	encoded, err := p.encode()
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(encoded)
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(node)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		return nil, err
	}
	out := &v1.Node{}
	if err := json.Unmarshal(after, out); err != nil {
		t.Fatal(err)
	}
	return out, nil
}

// TestHoldIsBoundToWhatItReplaces: everybody else's changes survive, and only
// those of the same parts are in the way.
func TestHoldIsBoundToWhatItReplaces(t *testing.T) {
	key := volume.HoldKey(driver)
	bare := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"}}
	full := aNode(true, versioned, func(n *v1.Node) { n.Annotations = map[string]string{"x/y": "1"} })
	for name, tc := range map[string]struct {
		node    *v1.Node
		change  func(*v1.Node)
		refused bool
	}{
		"a bare node":            {bare, func(*v1.Node) {}, false},
		"a new version":          {full, func(n *v1.Node) { n.ResourceVersion = "8" }, false},
		"volumes in use":         {full, func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{"v"} }, false},
		"an annotation":          {full, func(n *v1.Node) { n.Annotations["x/y"] = "2" }, false},
		"first annotation":       {bare, func(n *v1.Node) { n.Annotations = map[string]string{"x": "1"} }, true},
		"first taint":            {bare, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "k"}} }, true},
		"another taint":          {full, func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: "k"}) }, true},
		"a taint less":           {full, func(n *v1.Node) { n.Spec.Taints = nil }, true},
		"a record of the hold":   {full, func(n *v1.Node) { n.Annotations[key] = "{}" }, true},
		"another node, one name": {full, func(n *v1.Node) { n.UID = "other" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			patch, err := addHold(tc.node, driver, []volume.HeldVolume{{PV: "a", Handle: "h-a"}}, metav1.Unix(100, 0))
			if err != nil {
				t.Fatal(err)
			}
			changed := tc.node.DeepCopy()
			tc.change(changed)
			got, err := tryApply(t, changed, patch)
			if (err != nil) != tc.refused {
				t.Fatalf("applied with error %v", err)
			}
			if err != nil {
				return
			}
			if !holds(got, driver, []string{"a"}, false) || len(got.Spec.Taints) != len(changed.Spec.Taints)+1 ||
				got.Annotations["x/y"] != changed.Annotations["x/y"] {
				t.Errorf("the node became %+v", got)
			}
		})
	}
}

// TestReleaseIsBoundToTheVersion: it is decided by the status, which anybody may
// have changed.
func TestReleaseIsBoundToTheVersion(t *testing.T) {
	patch, err := addHold(aNode(true, versioned), driver, []volume.HeldVolume{{PV: "a"}}, metav1.Unix(100, 0))
	if err != nil {
		t.Fatal(err)
	}
	heldNode := apply(t, aNode(true, versioned), patch)
	release, err := holdPatch(heldNode, driver, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	release.unchangedSince()
	if held(apply(t, heldNode, release), driver) {
		t.Error("still held")
	}
	heldNode.ResourceVersion = "8"
	if _, err := tryApply(t, heldNode, release); err == nil {
		t.Error("released although the node changed")
	}
}

func versioned(n *v1.Node) { n.ResourceVersion = "7" }

func TestAddHold(t *testing.T) {
	now := metav1.Unix(100, 0)
	node := aNode(true, versioned)
	hold := func(n *v1.Node, vols ...volume.HeldVolume) *v1.Node {
		t.Helper()
		patch, err := addHold(n, driver, vols, now)
		if err != nil {
			t.Fatal(err)
		}
		return apply(t, n, patch)
	}
	if holds(node, driver, []string{"a"}, false) {
		t.Error("a fresh node is held")
	}
	one := hold(node, volume.HeldVolume{PV: "a", Handle: "h-a"})
	if !holds(one, driver, []string{"a"}, false) || holds(one, driver, []string{"a"}, true) || holds(one, driver, []string{"a", "b"}, false) {
		t.Errorf("held wrongly: %+v", one)
	}
	if one.Spec.Taints[0] != node.Spec.Taints[0] || len(one.Spec.Taints) != 2 {
		t.Errorf("taints %v", one.Spec.Taints)
	}
	two := hold(one, volume.HeldVolume{PV: "b", Handle: "h-b", Fenced: true})
	if !holds(two, driver, []string{"a", "b"}, false) || !holds(two, driver, []string{"b"}, true) || len(two.Spec.Taints) != 2 {
		t.Errorf("held wrongly: %+v", two)
	}
	again := hold(two, volume.HeldVolume{PV: "b", Handle: "h-b"})
	if !holds(again, driver, []string{"b"}, true) {
		t.Error("a fenced volume lost its fence by being held again")
	}
	booted := two.DeepCopy()
	booted.Status.NodeInfo.BootID = "boot-2"
	booted = hold(booted, volume.HeldVolume{PV: "c", Handle: "h-c", Fenced: true})
	if holds(booted, driver, []string{"b"}, true) || !holds(booted, driver, []string{"c"}, true) {
		t.Error("what was fenced before the boot is still unclean")
	}
	if two.Annotations[volume.AnnotationUnfence] != "" || holds(aNode(true), driver, nil, false) {
		t.Error("a node without taint counts as held")
	}
}

func TestAddHoldRefusesWhatItCannotRead(t *testing.T) {
	node := aNode(true, func(n *v1.Node) { n.Annotations = map[string]string{volume.HoldKey(driver): "garbage"} })
	if _, err := addHold(node, driver, []volume.HeldVolume{{PV: "a"}}, metav1.Now()); err == nil {
		t.Error("overwrote a record that it could not read")
	}
}

func TestAddHoldDropsAStaleWord(t *testing.T) {
	node := aNode(true, versioned, func(n *v1.Node) { n.Annotations = map[string]string{volume.AnnotationUnfence: "last year"} })
	patch, err := addHold(node, driver, []volume.HeldVolume{{PV: "a", Fenced: true}}, metav1.Now())
	if err != nil {
		t.Fatal(err)
	}
	if got := apply(t, node, patch); got.Annotations[volume.AnnotationUnfence] != "" {
		t.Error("a word from before the hold would release it")
	}
}

func TestReleaseHold(t *testing.T) {
	fenced := volume.HeldVolume{PV: "a", Handle: "h-a", Fenced: true}
	evicted := volume.HeldVolume{PV: "a", Handle: "h-a"}
	inUse := func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{volume.UniqueName(driver, "h-a")} }
	booted := func(n *v1.Node) { n.Status.NodeInfo.BootID = "boot-2" }
	word := func(n *v1.Node) { n.Annotations = map[string]string{volume.AnnotationUnfence: "I looked"} }
	type got struct {
		left    []volume.HeldVolume
		changed bool
	}
	for name, tc := range map[string]struct {
		ready     bool
		node      []func(*v1.Node)
		vol       volume.HeldVolume
		sick      bool
		busy      bool
		want      got
		released  bool
		usedWords bool
	}{
		"fenced and in use":             {ready: true, node: []func(*v1.Node){inUse}, vol: fenced, want: got{left: []volume.HeldVolume{fenced}}},
		"fenced, not in use, sick":      {ready: true, vol: fenced, sick: true, want: got{left: []volume.HeldVolume{evicted}, changed: true}},
		"fenced, not in use, recovered": {ready: true, vol: fenced, want: got{changed: true}, released: true},
		"fenced, stale status":          {ready: false, vol: fenced, want: got{left: []volume.HeldVolume{fenced}}},
		"fenced, on its way":            {ready: true, vol: fenced, busy: true, want: got{left: []volume.HeldVolume{fenced}}},
		"fenced, booted, not ready":     {ready: false, node: []func(*v1.Node){inUse, booted}, vol: fenced, want: got{left: []volume.HeldVolume{evicted}, changed: true}},
		"fenced, booted, ready, in use": {ready: true, node: []func(*v1.Node){inUse, booted}, vol: fenced, want: got{left: []volume.HeldVolume{evicted}, changed: true}},
		"fenced, a person's word":       {ready: true, node: []func(*v1.Node){inUse, word}, vol: fenced, want: got{changed: true}, released: true, usedWords: true},
		"fenced, a word, still sick":    {ready: true, node: []func(*v1.Node){inUse, word}, vol: fenced, sick: true, want: got{left: []volume.HeldVolume{evicted}, changed: true}, usedWords: true},
		"evicted and in use":            {ready: true, node: []func(*v1.Node){inUse}, vol: evicted, want: got{left: []volume.HeldVolume{evicted}}},
		"evicted and sick":              {ready: true, vol: evicted, sick: true, want: got{left: []volume.HeldVolume{evicted}}},
		"evicted and recovered":         {ready: true, vol: evicted, want: got{changed: true}, released: true},
		"evicted, on its way":           {ready: true, vol: evicted, busy: true, want: got{left: []volume.HeldVolume{evicted}}},
		"the volume is gone":            {ready: true, vol: volume.HeldVolume{PV: "a", Fenced: true}, want: got{changed: true}, released: true},
	} {
		t.Run(name, func(t *testing.T) {
			rec := volume.HoldRecord{BootID: "boot-1", Volumes: []volume.HeldVolume{tc.vol}}
			out := releaseHold(aNode(tc.ready, tc.node...), driver, rec,
				func(string) bool { return tc.busy }, func(volume.Handle) bool { return !tc.sick })
			var g got
			g.changed = out.changed
			if out.rec != nil {
				g.left = out.rec.Volumes
			}
			if diff := cmp.Diff(tc.want, g, cmp.AllowUnexported(got{})); diff != "" {
				t.Errorf("release (-want +got):\n%s", diff)
			}
			if (out.rec == nil) != tc.released || out.word != tc.usedWords {
				t.Errorf("released %v, word %v", out.rec == nil, out.word)
			}
			if !slices.Equal(rec.Volumes, []volume.HeldVolume{tc.vol}) {
				t.Error("the record that was passed is changed")
			}
		})
	}
}

func TestReleasePatchLeavesForeignTaints(t *testing.T) {
	node := aNode(true, versioned, func(n *v1.Node) {
		n.Annotations = map[string]string{volume.HoldKey(driver): "{}", "keep": "me"}
		n.Spec.Taints = append(n.Spec.Taints,
			v1.Taint{Key: volume.HoldKey(driver), Effect: v1.TaintEffectNoSchedule},
			v1.Taint{Key: volume.HoldKey("other.example.com"), Effect: v1.TaintEffectNoSchedule},
			v1.Taint{Key: volume.HoldKey(driver), Effect: v1.TaintEffectNoExecute})
	})
	patch, err := holdPatch(node, driver, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	got := apply(t, node, patch)
	want := []v1.Taint{node.Spec.Taints[0], node.Spec.Taints[2], node.Spec.Taints[3]}
	if diff := cmp.Diff(want, got.Spec.Taints); diff != "" || got.Annotations["keep"] != "me" {
		t.Errorf("taints (-want +got):\n%s annotations %v", diff, got.Annotations)
	}
}

func TestWordStaysForTheOtherDriver(t *testing.T) {
	other, err := volume.HoldRecord{Volumes: []volume.HeldVolume{{PV: "x", Fenced: true}}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	node := aNode(true, func(n *v1.Node) {
		n.Annotations = map[string]string{volume.HoldKey(driver): other, volume.HoldKey("other"): other}
	})
	if wordDone(node, driver, nil) {
		t.Error("the other driver still has a fenced volume here")
	}
	delete(node.Annotations, volume.HoldKey("other"))
	if !wordDone(node, driver, nil) {
		t.Error("nobody needs the word, and it stays")
	}
	if wordDone(node, driver, &volume.HoldRecord{Volumes: []volume.HeldVolume{{PV: "a", Fenced: true}}}) {
		t.Error("a busy volume still needs the word")
	}
}

func holds(node *v1.Node, driver string, pvs []string, fenced bool) bool {
	return holdOn(node, driver).covers(pvs, fenced)
}
