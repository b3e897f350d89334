package attach

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// claim makes a volume with a PersistentVolume and a claim, and waits until they
// are bound: kube-controller-manager is slow to look again at a pod that is earlier.
func (w *world) claim(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if _, err := w.NewVolume(ctx, name); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func(ctx context.Context) {
		if err := w.Client.CoreV1().PersistentVolumeClaims(rig.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := w.Client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	w.await(ctx, t, "claim "+name+" is bound", func() bool {
		claim := w.Claim(rig.Namespace, name)
		return claim != nil && claim.Status.Phase == v1.ClaimBound
	})
}

// pod makes a pod on the node that writes to the claim. Its end is that of the
// test, which then waits for Kubernetes to detach the volume.
func (w *world) pod(ctx context.Context, t *testing.T, name, claim, node string) {
	t.Helper()
	template, err := rig.WriterPod(claim, "")
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: template.Spec}
	pod.Spec.NodeName = node
	if _, err := w.Client.CoreV1().Pods(rig.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func(ctx context.Context) {
		if err := w.Client.CoreV1().Pods(rig.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		if err := w.Await(ctx, "the volume of pod "+name+" is detached", func() bool { return w.Pod(rig.Namespace, name) == nil && w.Attachment(claim, node) == nil }); err != nil {
			t.Error(err)
		}
	})
}

func (w *world) runningPod(ctx context.Context, t *testing.T, name, claim, node string) {
	t.Helper()
	w.pod(ctx, t, name, claim, node)
	w.awaitRunning(ctx, t, name)
}

func (w *world) awaitRunning(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if _, err := w.AwaitRunning(ctx, name, ""); err != nil {
		t.Fatal(err)
	}
}

// deletePod deletes a pod and waits until the node has stopped it.
func (w *world) deletePod(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	if err := w.Client.CoreV1().Pods(rig.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, "pod "+name+" is gone", func() bool { return w.Pod(rig.Namespace, name) == nil })
}

// volumeOf is the VolumeAttachment of a claim's volume on the node.
func (w *world) awaitVolume(ctx context.Context, t *testing.T, claim, node, what string, holds func(*storagev1.VolumeAttachment) bool) (va *storagev1.VolumeAttachment) {
	t.Helper()
	w.await(ctx, t, "the volume "+claim+" on "+node+" "+what, func() bool {
		va = w.Attachment(claim, node)
		return holds(va)
	})
	return va
}

func isGone(va *storagev1.VolumeAttachment) bool { return va == nil }

// A pod whose volume cannot be attached is given up: what may be left of the
// attach is undone at once, not after minutes, and the volume goes elsewhere.
func TestKK117042_FailedAttachIsGivenUp(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.claim(ctx, t, "kk117042")
	id, clear := w.inject(ctx, t, simctl.Fault{Method: publish, Volume: handle("kk117042"), Node: "node-1", Code: codes.Internal, Message: "no path"})
	w.pod(ctx, t, "kk117042-a", "kk117042", "node-1")
	w.hits(ctx, t, id, 2)
	w.awaitVolume(ctx, t, "kk117042", "node-1", "says why", func(va *storagev1.VolumeAttachment) bool {
		return va != nil && says(va.Status.AttachError, "no path")
	})
	// It takes a volume for mounted from then on, and looks again when the node
	// tells of a change: this one is before the pod's deletion for sure.
	w.await(ctx, t, "Kubernetes knows of the failure", func() bool { return len(w.Events("kk117042-a", "FailedAttachVolume")) > 0 })
	began := time.Now()
	w.deletePod(ctx, t, "kk117042-a")
	w.awaitVolume(ctx, t, "kk117042", "node-1", "is gone", isGone)
	t.Logf("given up %v after the pod was deleted", time.Since(began))
	if n := len(w.wire.of(unpublish, handle("kk117042"))); n != 1 {
		t.Errorf("%d unpublishes of what may be left, want 1", n)
	}
	clear()
	w.runningPod(ctx, t, "kk117042-b", "kk117042", "node-2")
}
