package attach

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// elected are the flags by which external-attacher takes part in an election.
var elected = []string{
	"--leader-election", "--leader-election-namespace=" + rig.SidecarNamespace,
	"--leader-election-lease-duration=" + leaseDuration.String(), "--leader-election-renew-deadline=" + renewDeadline.String(), "--leader-election-retry-period=1s",
}

// external starts external-attacher, quick as ours, on a wire of its own.
func (w *world) external(ctx context.Context, t *testing.T, name string, flags ...string) (*rig.Sidecar, *wire) {
	t.Helper()
	own := w.newWire(t, name)
	s, err := w.StartOther(ctx, "csi-attacher", "/metrics", append([]string{
		"--csi-address=" + own.socket, "--timeout=" + callTimeout.String(), "--retry-interval-start=" + retryStart.String(),
		"--kube-api-qps=1000", "--kube-api-burst=1000", "--v=5",
	}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return s, own
}

// external-attacher leads, in the same namespace. Ours waits for it, is Ready and
// writes nothing. When it is gone, killed in the middle of its work, ours goes on
// with what it left: what is attached stays so, without a call, and what is half
// done is finished.
func TestDropIn_TakesOverFromExternalAttacher(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.stopAll(t)
	old, theirs := w.external(ctx, t, "ea-old", elected...)
	for _, name := range []string{"over-kept", "over-half", "over-failing", "over-leaving", "over-late"} {
		w.volume(ctx, t, name)
	}
	for _, name := range []string{"over-kept", "over-failing", "over-leaving"} {
		w.attached(ctx, t, name, name, "node-1")
	}
	began := time.Now()
	ours := w.start(ctx, t) // is Ready
	w.await(ctx, t, "ours waits for the lease", func() bool {
		body, err := ours.Body("/debug/leader")
		return err == nil && strings.Contains(body, "external-attacher-leader-")
	})
	half, _ := w.inject(ctx, t, simctl.Fault{Method: publish, Volume: handle("over-half"), Effect: true, Hang: true, Times: 1})
	leaving, _ := w.inject(ctx, t, simctl.Fault{Method: unpublish, Volume: handle("over-leaving"), Effect: true, Hang: true, Times: 1})
	failing, clear := w.inject(ctx, t, simctl.Fault{Method: unpublish, Volume: handle("over-failing"), Code: codes.Internal, Message: "busy"})
	w.attachment(ctx, t, "over-half", "over-half", "node-1")
	w.remove(ctx, t, "over-leaving")
	w.remove(ctx, t, "over-failing")
	for _, id := range []string{half, leaving, failing} {
		w.hits(ctx, t, id, 1)
	}
	for _, q := range w.since(t, began) {
		if q.Verb != "get" && q.Verb != "list" && q.Resource != "leases" {
			t.Errorf("ours asked %s %s while the other one leads", q.Verb, q.URI)
		}
	}
	old.Kill()
	w.attachment(ctx, t, "over-late", "over-late", "node-1")
	clear()
	for _, name := range []string{"over-late", "over-half", "over-kept"} {
		w.awaitAttached(ctx, t, name)
	}
	w.gone(ctx, t, "over-failing")
	w.gone(ctx, t, "over-leaving")
	if story := theirs.story(handle("over-kept")); strings.Contains(story, "unpublish") {
		t.Errorf("calls of the other one: %s", story) // it may publish more than once: EA291
	}
	for name, want := range map[string]string{
		"over-kept": "", "over-half": "publish node-1", "over-failing": "unpublish node-1", "over-leaving": "unpublish node-1", "over-late": "publish node-1",
	} {
		w.wire.wantStory(t, handle(name), want)
	}
	w.remove(ctx, t, "over-kept")
	w.gone(ctx, t, "over-kept")
	w.wire.wantStory(t, handle("over-kept"), "unpublish node-1")
	if e := w.EventsOf(attach.ReasonForeignAttacher); len(e) > 0 {
		t.Errorf("what it left is taken for a foreigner's: %s", e[0].Message)
	}
}

// The way back: external-attacher takes over when ours is stopped, keeps what is
// attached, and detaches it.
func TestDropIn_GivesBackToExternalAttacher(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.stopAll(t)
	first := w.newWire(t, "ours")
	ours := w.start(ctx, t, "--csi-address="+first.socket)
	w.awaitLeads(ctx, t, ours)
	for _, name := range []string{"back-kept", "back-failing", "back-late"} {
		w.volume(ctx, t, name)
	}
	w.attached(ctx, t, "back-kept", "back-kept", "node-1")
	w.attached(ctx, t, "back-failing", "back-failing", "node-1")
	_, theirs := w.external(ctx, t, "ea-back", elected...)
	failing, clear := w.inject(ctx, t, simctl.Fault{Method: unpublish, Volume: handle("back-failing"), Code: codes.Internal, Message: "busy"})
	w.remove(ctx, t, "back-failing")
	w.hits(ctx, t, failing, 1)
	if n := len(theirs.of(publish, "")) + len(theirs.of(unpublish, "")); n > 0 {
		t.Errorf("%d calls of the other one while ours leads", n)
	}
	if err := ours.Stop(); err != nil {
		t.Fatal(err)
	}
	w.attachment(ctx, t, "back-late", "back-late", "node-1")
	w.awaitAttached(ctx, t, "back-late")
	clear()
	w.gone(ctx, t, "back-failing")
	w.remove(ctx, t, "back-kept")
	w.gone(ctx, t, "back-kept")
	theirs.wantStory(t, handle("back-kept"), "unpublish node-1")
	if err := w.Client.CoreV1().PersistentVolumes().Delete(ctx, "back-kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(ctx, t, "the PersistentVolume is let go", func() bool { return w.pv(ctx, t, "back-kept") == nil })
	w.remove(ctx, t, "back-late")
	w.gone(ctx, t, "back-late")
}

// external-attacher runs without an election, beside ours, which leads. Ours sees
// that somebody else works on a VolumeAttachment, says so there, and ends.
func TestDropIn_ExternalAttacherWithoutElection(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	w.stopAll(t)
	ours := w.start(ctx, t)
	w.awaitLeads(ctx, t, ours)
	w.volume(ctx, t, "beside-ours")
	w.attached(ctx, t, "beside-ours", "beside-ours", "node-1")
	w.lists(ctx, t, 2) // the hold-off is over
	_, theirs := w.external(ctx, t, "ea-beside")
	w.volume(ctx, t, "beside-theirs")
	// Whoever is faster works on it; here it is the other one.
	if err := ours.Pause(); err != nil {
		t.Fatal(err)
	}
	w.attached(ctx, t, "beside-theirs", "beside-theirs", "node-1")
	if err := ours.Continue(); err != nil {
		t.Fatal(err)
	}
	if code := ended(ctx, t, ours.Process); code != 1 {
		t.Errorf("ours ended with %d, want 1", code)
	}
	if tail := ours.Tail(); !strings.Contains(tail, "csi-attacher") || !strings.Contains(tail, "--controllers=-attacher") {
		t.Errorf("its last words: %s", tail)
	}
	w.await(ctx, t, "an event says so", func() bool { return len(w.Events("beside-theirs", attach.ReasonForeignAttacher)) == 1 })
	for _, name := range []string{"beside-ours", "beside-theirs"} {
		w.remove(ctx, t, name)
		w.gone(ctx, t, name)
		theirs.await(ctx, t, w, unpublish, handle(name))
	}
}

// await waits until a call has ended well.
func (own *wire) await(ctx context.Context, t *testing.T, w *world, method, volume string) {
	t.Helper()
	w.await(ctx, t, method+" of "+volume, func() bool {
		for _, c := range own.of(method, volume) {
			if c.Code == codes.OK && !c.Ended.IsZero() {
				return true
			}
		}
		return false
	})
}
