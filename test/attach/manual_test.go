package attach

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// deletedByHand tells the VolumeAttachments that tests delete under running pods.
func deletedByHand(name string) bool { return byHand[name] }

var byHand = map[string]bool{}

// A person deletes the VolumeAttachment of a running pod. That is told, the detach
// goes on, and Kubernetes attaches the volume again.
func TestKK106710_ManualDeleteIsTold(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.claim(ctx, t, "kk106710")
	w.runningPod(ctx, t, "kk106710", "kk106710", "node-1")
	va := w.Attachment("kk106710", "node-1")
	w.awaitUse(t, "kk106710", "node-1")
	byHand[va.Name] = true
	w.remove(ctx, t, va.Name)
	w.await(ctx, t, "an event says what was done", func() bool {
		e := w.Events(va.Name, attach.ReasonDeletedInUse)
		return len(e) == 1 && e[0].Type == v1.EventTypeWarning && strings.Contains(e[0].Message, "--manual-detach-delay")
	})
	w.awaitVolume(ctx, t, "kk106710", "node-1", "is attached again", func(is *storagev1.VolumeAttachment) bool {
		return is != nil && is.UID != va.UID && is.Status.Attached
	})
	w.wire.wantStory(t, handle("kk106710"), "publish node-1, unpublish node-1, publish node-1")
}

// With --manual-detach-delay the volume stays for the pod, until that is stopped
// and the node has unmounted the volume, which is long before the delay is over.
func TestKK106710_ManualDeleteWaitsForThePod(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.restarts(t, "--manual-detach-delay=10m")
	w.claim(ctx, t, "kk106710-wait")
	w.runningPod(ctx, t, "kk106710-wait", "kk106710-wait", "node-1")
	va := w.Attachment("kk106710-wait", "node-1")
	w.awaitUse(t, "kk106710-wait", "node-1")
	byHand[va.Name] = true
	w.remove(ctx, t, va.Name)
	w.await(ctx, t, "an event says what to do", func() bool {
		e := w.Events(va.Name, attach.ReasonDeletedInUse)
		return len(e) == 1 && strings.Contains(e[0].Message, "stop the pods that use it there")
	})
	w.lists(ctx, t, 2)
	w.wire.wantStory(t, handle("kk106710-wait"), "publish node-1")
	before, err := w.Lines("kk106710-wait")
	if err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, "the pod goes on writing", func() bool {
		now, err := w.Lines("kk106710-wait")
		return err == nil && len(now) > len(before)
	})
	began := time.Now()
	w.deletePod(ctx, t, "kk106710-wait")
	w.awaitVolume(ctx, t, "kk106710-wait", "node-1", "is gone", isGone)
	t.Logf("detached %v after the pod was deleted", time.Since(began))
	w.wire.wantStory(t, handle("kk106710-wait"), "publish node-1, unpublish node-1")
	unmounted, ok := w.Observer.First(began, func(ch rig.Change) bool {
		node, ok := ch.New.(*v1.Node)
		return ok && node.Name == "node-1" && !kube.VolumeInUse(node, uniqueName("kk106710-wait"))
	})
	if call := w.wire.of(unpublish, handle("kk106710-wait"))[0]; !ok || call.Began.Before(unmounted.Add(-100*time.Millisecond)) {
		t.Errorf("detached at %v, unmounted at %v", call.Began, unmounted)
	}
}

func uniqueName(volume string) v1.UniqueVolumeName {
	return v1.UniqueVolumeName("kubernetes.io/csi/" + rig.Driver + "^" + handle(volume))
}

// awaitUse waits until the Node says that the volume is attached and in use.
func (w *world) awaitUse(t *testing.T, volume, node string) {
	t.Helper()
	name := uniqueName(volume)
	w.await(bounded(t), t, node+" uses "+volume, func() bool {
		n := w.Node(node)
		if n == nil || !kube.VolumeInUse(n, name) {
			return false
		}
		for _, a := range n.Status.VolumesAttached {
			if a.Name == name {
				return true
			}
		}
		return false
	})
}

// restarts replaces the replica by one with these flags, until the test ends.
func (w *world) restarts(t *testing.T, flags ...string) {
	t.Helper()
	if _, err := w.Restart(bounded(t), flags...); err != nil {
		t.Fatal(err)
	}
	cleanup(t, func(ctx context.Context) {
		if _, err := w.Restart(ctx); err != nil {
			t.Error(err)
		}
	})
}
