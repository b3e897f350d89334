package rig

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// worldBound is how long the tests on a world may take, its start included.
const worldBound = 4 * time.Minute

const testZone = "topology.example.com/zone"

// newWorld is a cluster of two nodes in two zones, without ha-sidecar.
func newWorld(t *testing.T) (context.Context, *Rig) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), worldBound)
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("", "rig") // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	w, err := Start(ctx, Config{
		Dir: dir, Nodes: 2, DriverArgs: []string{"--capacity=4294967296"},
		Topology: map[string]map[string]string{"node-1": {testZone: "a"}, "node-2": {testZone: "b"}},
	})
	if err != nil {
		t.Fatal(err, " see ", dir)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log("see ", dir)
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return ctx, w
}

// podWith is a pod that uses a claim, and would rather be on node-1.
func podWith(claim string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: v1.PodSpec{
			Affinity:   Prefer("node-1"),
			Containers: []v1.Container{{Name: "c", Image: "none", Command: []string{"/bin/true"}}},
			Volumes: []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}},
		},
	}
}

// TestProvisioningWorld: the nodes' topology is where the scheduler and the
// driver look for it, and the helpers do what they say.
func TestProvisioningWorld(t *testing.T) {
	ctx, w := newWorld(t)
	for node, zone := range map[string]string{"node-1": "a", "node-2": "b"} {
		csiNode, err := w.Client.StorageV1().CSINodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{testZone}, csiNode.Spec.Drivers[0].TopologyKeys); diff != "" || w.Node(node).Labels[testZone] != zone {
			t.Errorf("%s: labels %v, topology keys (-want +got):\n%s", node, w.Node(node).Labels, diff)
		}
	}
	t.Run("the scheduler obeys a volume's topology", func(t *testing.T) { schedulesToVolume(ctx, t, w) })
	t.Run("the scheduler chooses among a class's topologies", func(t *testing.T) { schedulesWithClass(ctx, t, w) })
	t.Run("the manifests of the examples are accepted", func(t *testing.T) { acceptsExamples(ctx, t, w) })
	t.Run("snapshots are known", func(t *testing.T) { knowsSnapshots(ctx, t, w) })
}

func schedulesToVolume(ctx context.Context, t *testing.T, w *Rig) {
	if _, err := w.NewClass(ctx, "at-once", nil); err != nil {
		t.Fatal(err)
	}
	claim, err := w.NewClaim(ctx, "placed", "at-once", nil)
	if err != nil {
		t.Fatal(err)
	}
	handle, err := w.Driver.CreateVolume(ctx, "placed", claimSize)
	if err != nil {
		t.Fatal(err)
	}
	// In the place of a provisioner.
	_, err = w.Client.CoreV1().PersistentVolumes().Create(ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "placed"},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes, StorageClassName: "at-once",
			Capacity:               v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(claimSize, resource.BinarySI)},
			ClaimRef:               &v1.ObjectReference{Namespace: Namespace, Name: "placed", UID: claim.UID},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: Driver, VolumeHandle: handle}},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: testZone, Operator: v1.NodeSelectorOpIn, Values: []string{"b"}}}}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv, err := w.AwaitBound(ctx, Namespace, "placed")
	if err != nil || pv.Name != "placed" {
		t.Fatalf("bound to %v, %v", pv, err)
	}
	volumes, err := w.DriverVolumes(ctx)
	if err != nil || volumes["placed"].ID != handle || len(volumes) != 1 {
		t.Errorf("the driver's volumes: %v, %v", volumes, err)
	}
	if _, err := w.Client.CoreV1().Pods(Namespace).Create(ctx, podWith("placed"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Await(ctx, "the pod has a node", func() bool {
		pod := w.Pod(Namespace, "placed")
		return pod != nil && pod.Spec.NodeName != ""
	}); err != nil {
		t.Fatal(err)
	}
	if got := w.Pod(Namespace, "placed").Spec.NodeName; got != "node-2" {
		t.Errorf("the pod is on %s, and its volume is at node-2", got)
	}
}

// selectedNode is the annotation by which the scheduler tells a provisioner.
const selectedNode = "volume.kubernetes.io/selected-node"

func schedulesWithClass(ctx context.Context, t *testing.T, w *Rig) {
	later := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := w.NewClass(ctx, "later", func(class *storagev1.StorageClass) {
		class.VolumeBindingMode = &later
		class.AllowedTopologies = []v1.TopologySelectorTerm{{
			MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: testZone, Values: []string{"b"}}}}}
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.NewClaim(ctx, "waits", "later", func(claim *v1.PersistentVolumeClaim) { claim.Labels = map[string]string{"app": "x"} })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Client.CoreV1().Pods(Namespace).Create(ctx, podWith("waits"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Await(ctx, "the scheduler chose a node", func() bool {
		claim := w.Claim(Namespace, "waits")
		return claim != nil && claim.Annotations[selectedNode] != ""
	}); err != nil {
		t.Fatal(err)
	}
	if claim := w.Claim(Namespace, "waits"); claim.Annotations[selectedNode] != "node-2" || claim.Labels["app"] != "x" {
		t.Errorf("claim: %+v", claim.ObjectMeta)
	}
}

func knowsSnapshots(ctx context.Context, t *testing.T, w *Rig) {
	for range 2 {
		if err := w.SnapshotCRDs(ctx); err != nil {
			t.Fatal(err)
		}
	}
	object := func(kind string, content map[string]any) *unstructured.Unstructured {
		o := &unstructured.Unstructured{Object: content}
		o.SetAPIVersion("snapshot.storage.k8s.io/v1")
		o.SetKind(kind)
		o.SetName("s")
		return o
	}
	resources := func(plural string) schema.GroupVersionResource {
		return schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: plural}
	}
	if _, err := w.Dynamic.Resource(resources("volumesnapshotclasses")).Create(ctx, object("VolumeSnapshotClass",
		map[string]any{"driver": Driver, "deletionPolicy": "Delete"}), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := w.Dynamic.Resource(resources("volumesnapshotcontents")).Create(ctx, object("VolumeSnapshotContent", map[string]any{
		"spec": map[string]any{"driver": Driver, "deletionPolicy": "Delete", "source": map[string]any{"snapshotHandle": "snap-s"},
			"volumeSnapshotRef": map[string]any{"namespace": Namespace, "name": "s"}},
	}), metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	snapshots := w.Dynamic.Resource(resources("volumesnapshots")).Namespace(Namespace)
	made, err := snapshots.Create(ctx, object("VolumeSnapshot", map[string]any{
		"spec": map[string]any{"source": map[string]any{"volumeSnapshotContentName": "s"}},
	}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The status is apart, as for those that act on snapshots.
	if err := unstructured.SetNestedField(made.Object, true, "status", "readyToUse"); err != nil {
		t.Fatal(err)
	}
	if _, err := snapshots.UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

// TestSnapshotCRDFiles: all three are there, and say where they come from.
func TestSnapshotCRDFiles(t *testing.T) {
	crds, err := snapshotCRDs()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, crd := range crds {
		names = append(names, crd.GetName())
	}
	slices.Sort(names)
	want := []string{"volumesnapshotclasses.snapshot.storage.k8s.io", "volumesnapshotcontents.snapshot.storage.k8s.io",
		"volumesnapshots.snapshot.storage.k8s.io"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("definitions (-want +got):\n%s", diff)
	}
	files, err := filepath.Glob("crds/*")
	if err != nil || len(files) != len(crds) {
		t.Errorf("%v, %v", files, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if header, _, _ := strings.Cut(string(content), "---"); !strings.Contains(header, "external-snapshotter/client/v8 v8.") ||
			!strings.Contains(header, "Apache License 2.0") {
			t.Errorf("%s does not say where it comes from: %q", file, header)
		}
	}
}

func TestEstablished(t *testing.T) {
	for name, c := range map[string]struct {
		conditions []any
		want       bool
	}{
		"new":     {},
		"named":   {[]any{map[string]any{"type": "NamesAccepted", "status": "True"}}, false},
		"not yet": {[]any{map[string]any{"type": "Established", "status": "False"}}, false},
		"yes":     {[]any{map[string]any{"type": "NamesAccepted", "status": "True"}, map[string]any{"type": "Established", "status": "True"}}, true},
	} {
		crd := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": c.conditions}}}
		if got := established(crd); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
