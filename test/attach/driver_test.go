package attach

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

// No error of an unpublish passes for success: the VolumeAttachment stays, says
// why, and the driver is asked again with growing pauses.
func TestEA164_DetachErrorKeepsTheAttachment(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	for _, code := range []codes.Code{codes.NotFound, codes.Internal} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			ctx := bounded(t)
			name := "ea164-" + strings.ToLower(code.String())
			w.volume(ctx, t, name)
			w.attached(ctx, t, name, name, "node-1")
			id, clear := w.inject(ctx, t, simctl.Fault{Method: unpublish, Volume: handle(name), Code: code, Message: "the array says no"})
			w.remove(ctx, t, name)
			w.hits(ctx, t, id, 4)
			w.await(ctx, t, "the status says why", func() bool {
				e := w.status(name).DetachError
				return says(e, "the array says no") && e.ErrorCode != nil && codes.Code(*e.ErrorCode) == code
			})
			if !w.status(name).Attached {
				t.Error("the status says that it is detached")
			}
			wantBackoff(t, w.wire.of(unpublish, handle(name)))
			if n := w.writes(t, "volumeattachments", name); n != 3 {
				t.Errorf("%d writes, want 3: intent, commit and one error", n)
			}
			clear()
			w.gone(ctx, t, name)
		})
	}
}

// A failing publish is tried again with growing pauses, though each failure is
// another one, and is written into the status, which we watch.
func TestEA337_OwnStatusWritesDoNotDefeatTheBackoff(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "ea337")
	failures := 0
	undo := w.wire.change(t.Name(), func(a *answer) {
		if a.Method == publish && a.Volume == handle("ea337") {
			failures++
			a.Code, a.Message = codes.Internal, fmt.Sprintf("failure %d", failures)
		}
	})
	t.Cleanup(undo)
	w.attachment(ctx, t, "ea337", "ea337", "node-1")
	w.await(ctx, t, "it has failed five times", func() bool { return says(w.status("ea337").AttachError, "failure 5") })
	wantBackoff(t, w.wire.of(publish, handle("ea337")))
	undo()
	w.awaitAttached(ctx, t, "ea337")
}

// The volume is detached already, behind our back, and the driver answers the
// unpublish by NotFound for ever. It is let go when the driver's list has shown
// twice that it is nowhere.
func TestLinstor52_DetachedBehindOurBack(t *testing.T) {
	w := sharedWorld(t)
	t.Parallel()
	ctx := bounded(t)
	w.volume(ctx, t, "linstor52")
	w.attached(ctx, t, "linstor52", "linstor52", "node-1")
	w.unpublishDirectly(ctx, t, "linstor52", "node-1")
	w.inject(ctx, t, simctl.Fault{Method: unpublish, Volume: handle("linstor52"), Code: codes.NotFound})
	w.remove(ctx, t, "linstor52")
	w.gone(ctx, t, "linstor52")
	if n := len(w.wire.of(unpublish, handle("linstor52"))); n == 0 {
		t.Error("it was let go without asking the driver")
	}
}

// unpublishDirectly calls the driver past everybody.
func (w *world) unpublishDirectly(ctx context.Context, t *testing.T, name, node string) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+w.dir+"/driver.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, err = csi.NewControllerClient(conn).ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: handle(name), NodeId: node})
	if err != nil {
		t.Fatal(err)
	}
}
