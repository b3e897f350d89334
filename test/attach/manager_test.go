package attach

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

func (w *world) startManager(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := w.StartControllerManager(ctx); err != nil {
		t.Fatal(err)
	}
}

// kube-controller-manager is killed and comes back while a volume is in use, and
// rebuilds what it knew: nothing is published, nor taken away.
func TestKK77324_ManagerRestartsAtRest(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.claim(ctx, t, "kk77324")
	w.runningPod(ctx, t, "kk77324", "kk77324", "node-1")
	before := w.Attachment("kk77324", "node-1")
	w.KillControllerManager()
	w.startManager(ctx, t)
	w.lists(ctx, t, 2)
	if va := w.Attachment("kk77324", "node-1"); va == nil || va.UID != before.UID || !va.Status.Attached || va.DeletionTimestamp != nil {
		t.Errorf("the VolumeAttachment is %v", va)
	}
	w.wire.wantStory(t, handle("kk77324"), "publish node-1")
	w.deletePod(ctx, t, "kk77324")
	w.awaitVolume(ctx, t, "kk77324", "node-1", "is gone", isGone)
	w.wire.wantStory(t, handle("kk77324"), "publish node-1, unpublish node-1")
}

// The detach fails, kube-controller-manager is killed meanwhile, and the next pod
// wants the volume on the same node, where it is not to be used as it is: it is
// attached again once the detach has worked.
func TestKK120571_DetachErrorAndManagerRestart(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.restarts(t, "--attacher-retry-interval-max=1s")
	clear := w.detachFailsOverRestart(ctx, t, "kk120571")
	w.pod(ctx, t, "kk120571-b", "kk120571", "node-1")
	w.startManager(ctx, t)
	// It pauses for 2 s after its third failure, and the detach comes in less. If
	// the VolumeAttachment went while it looks, it would wait for two minutes.
	w.await(ctx, t, "Kubernetes has failed to attach it three times", func() bool {
		failures := int32(0)
		for _, e := range w.Events("kk120571-b", "FailedAttachVolume") {
			failures += e.Count
		}
		return failures >= 3
	})
	clear()
	w.awaitRunning(ctx, t, "kk120571-b")
	w.wantOnePublishEach(t, "kk120571", "node-1", "node-1")
}

// The same, and the next pod is on another node: it waits for that detach, and
// no longer.
func TestKK108869_DetachErrorAndManagerRestartElsewhere(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	clear := w.detachFailsOverRestart(ctx, t, "kk108869")
	w.pod(ctx, t, "kk108869-b", "kk108869", "node-2")
	w.startManager(ctx, t)
	w.lists(ctx, t, 1)
	if calls := w.wire.of(publish, handle("kk108869")); len(calls) != 1 {
		t.Errorf("published %d times before the detach", len(calls))
	}
	clear()
	w.awaitRunning(ctx, t, "kk108869-b")
	w.wantOnePublishEach(t, "kk108869", "node-1", "node-2")
}

// detachFailsOverRestart runs a pod, deletes it, makes the detach fail, and kills
// kube-controller-manager between two failures.
func (w *world) detachFailsOverRestart(ctx context.Context, t *testing.T, name string) (clear func()) {
	t.Helper()
	w.claim(ctx, t, name)
	w.runningPod(ctx, t, name+"-a", name, "node-1")
	id, clear := w.inject(ctx, t, simctl.Fault{Method: unpublish, Volume: handle(name), Code: codes.Internal, Message: "busy"})
	w.deletePod(ctx, t, name+"-a")
	w.hits(ctx, t, id, 1)
	w.awaitVolume(ctx, t, name, "node-1", "says why it stays", func(va *storagev1.VolumeAttachment) bool {
		return va != nil && va.DeletionTimestamp != nil && says(va.Status.DetachError, "busy")
	})
	w.KillControllerManager()
	w.hits(ctx, t, id, 2)
	return clear
}

// wantOnePublishEach holds that the volume was published to these nodes in turn,
// with the success of an unpublish between them.
func (w *world) wantOnePublishEach(t *testing.T, name string, nodes ...string) {
	t.Helper()
	calls := w.wire.of(publish, handle(name))
	if len(calls) != len(nodes) {
		t.Fatalf("calls: %s; want one publish to each of %v", w.wire.story(handle(name)), nodes)
	}
	for i, node := range nodes {
		if calls[i].Node != node || calls[i].Code != codes.OK {
			t.Errorf("publish %d: %+v, want it to work on %s", i+1, calls[i], node)
		}
	}
	for _, c := range w.wire.of(unpublish, handle(name)) {
		if c.Code == codes.OK && c.Ended.After(calls[0].Ended) && c.Ended.Before(calls[1].Began) {
			return
		}
	}
	t.Errorf("calls: %s; want an unpublish that worked between the publishes", w.wire.story(handle(name)))
}
