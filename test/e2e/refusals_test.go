package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// A pod that also writes to a volume of another driver is not moved: nothing
// would cut its old instance off from that.
func TestPiraeus18_SecondVolumeOfAnotherDriver(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	w.otherVolume(ctx, t, "piraeus18-other")
	db := w.database(ctx, t, "piraeus18", node, func(p *v1.PodTemplateSpec) {
		addVolume(p, "other", v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "piraeus18-other"}})
	})
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverRefused", "UnsafeVolume: pod default/piraeus18-0 can write to what nothing fences: other (driver "+otherDriver+")")
	db.untouched(ctx)
}

// A pod with a writable hostPath is refused, and told so once; neither it nor
// its VolumeAttachment is touched, however often it is looked at again.
func TestPiraeus59_HostPathIsToldOnce(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "piraeus59", node, func(p *v1.PodTemplateSpec) {
		addVolume(p, "localtime", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/tmp"}})
	})
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverRefused", "hostPath /tmp")
	// Each of these makes it decide again; the last one ends the refusal.
	for _, value := range []string{"false", "no", "true"} {
		db.annotatePod(ctx, volume.AnnotationAllowUnsafe, value)
		if value == "true" {
			break
		}
		db.untouched(ctx)
	}
	old := db.pod
	db.moves(ctx)
	events := slices.DeleteFunc(w.Events(old.Name, "FailoverRefused"), func(e *v1.Event) bool { return e.InvolvedObject.UID != old.UID })
	if n := toldTimes(events); n != 1 {
		t.Errorf("the refusal was told %d times, want once", n)
	}
}

// A pod that only one node can run is not evicted from there again and again.
func TestPiraeusPR25_NowhereElseToRun(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "pr25", node, func(p *v1.PodTemplateSpec) {
		p.Spec.NodeSelector = map[string]string{v1.LabelHostname: node}
	})
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverRefused", "NowhereToGo")
	db.untouched(ctx)
	if n := len(w.deletions(db.pod.Name)); n != 0 {
		t.Errorf("%d pods were asked to go", n)
	}
	if held(w.Node(node)) {
		t.Errorf("%s is held although nothing moves", node)
	}
}

// A pod that must run beside another one is not moved away from it, where it
// could not be placed; the event names the reason.
func TestCSM165_RequiredPodAffinity(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	mate := w.database(ctx, t, "csm165-mate", node)
	db := w.database(ctx, t, "csm165", node, func(p *v1.PodTemplateSpec) {
		p.Spec.Affinity.PodAffinity = &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": mate.name}},
		}}}
	})
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverRefused", "RequiredPodAffinity: pod default/csm165-0 requires (podAffinity) to run on the node of pod default/csm165-mate-0")
	db.untouched(ctx)
	mate.untouched(ctx)
}

// A disruption budget is never overridden on a Ready node: at the deadline the
// walk ends without a fence, visibly.
func TestDisruptionBudgetStandsOnAReadyNode(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "budget", node)
	one := intstr.FromInt32(1)
	_, err := w.Client.PolicyV1().PodDisruptionBudgets(rig.Namespace).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: db.name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": db.name}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := w.Client.PolicyV1().PodDisruptionBudgets(rig.Namespace).Delete(ctx, db.name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverEnded", "disruption budget")
	db.untouched(ctx)
}

// A namespace opts all its pods out; opted in again, they are moved.
func TestOptOutOfANamespace(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "opt-out", node)
	annotate := func(ctx context.Context, value any) {
		if _, err := w.Client.CoreV1().Namespaces().Patch(ctx, rig.Namespace, types.MergePatchType, annotation(volume.ScopeKey, value), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	annotate(ctx, "disabled")
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		annotate(ctx, nil)
	})
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverRefused", "OptedOut")
	db.untouched(ctx)
	annotate(ctx, nil)
	db.moves(ctx)
}

// A pause of the driver stops every move, says so, and ends when it is taken
// off.
func TestPausedDriver(t *testing.T) {
	w := sharedWorld(t)
	node := w.node(t)
	ctx := bounded(t)
	db := w.database(ctx, t, "paused", node)
	annotate := func(ctx context.Context, value any) {
		if _, err := w.Client.StorageV1().CSIDrivers().Patch(ctx, rig.Driver, types.MergePatchType, annotation(volume.AnnotationPaused, value), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	annotate(ctx, "array upgrade")
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		annotate(ctx, nil)
	})
	db.fails(ctx)
	db.awaitEvent(ctx, "FailoverRefused", "paused (array upgrade)")
	db.untouched(ctx)
	annotate(ctx, nil)
	db.moves(ctx)
}

// annotation is a merge patch of one annotation; nil takes it off.
func annotation(key string, value any) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		panic(err) // strings and nil can be encoded
	}
	return patch
}

func (db *database) annotatePod(ctx context.Context, key, value string) {
	db.t.Helper()
	_, err := db.Client.CoreV1().Pods(rig.Namespace).Patch(ctx, db.pod.Name, types.MergePatchType, annotation(key, value), metav1.PatchOptions{})
	if err != nil {
		db.t.Fatal(err)
	}
}

// addVolume mounts one more volume in the pod, writable.
func addVolume(p *v1.PodTemplateSpec, name string, source v1.VolumeSource) {
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	container := &p.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, v1.VolumeMount{Name: name, MountPath: "/" + name})
}

// otherVolume makes a volume of the other driver, published where its node
// service runs, with its claim.
func (w *world) otherVolume(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	no := false
	_, err := w.Client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: otherDriver}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv, err := w.NewVolume(ctx, name+"-made")
	if err != nil {
		t.Fatal(err)
	}
	store, err := state.New(state.Config{Dir: w.StateDir()})
	if err != nil {
		t.Fatal(err)
	}
	handle := pv.Spec.CSI.VolumeHandle
	if _, err := store.Publish(ctx, state.Publication{Volume: handle, Node: otherNode, Mode: "SINGLE_NODE_WRITER"}); err != nil {
		t.Fatal(fmt.Errorf("publishing the other driver's volume: %w", err))
	}
	other := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: *pv.Spec.DeepCopy()}
	other.Spec.CSI.Driver, other.Spec.ClaimRef = otherDriver, &v1.ObjectReference{Namespace: rig.Namespace, Name: name}
	if _, err := w.Client.CoreV1().PersistentVolumes().Create(ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	none := ""
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: other.Spec.AccessModes, VolumeName: name, StorageClassName: &none,
		Resources: v1.VolumeResourceRequirements{Requests: other.Spec.Capacity},
	}}
	if _, err := w.Client.CoreV1().PersistentVolumeClaims(rig.Namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
