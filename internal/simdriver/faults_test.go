package simdriver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

const unpublishMethod = "ControllerUnpublishVolume"

func (r *rig) inject(f simctl.Fault) string {
	r.t.Helper()
	id, err := r.ctl.Inject(r.t.Context(), f)
	r.must(err)
	return id
}

func (r *rig) published(volume string) []string {
	r.t.Helper()
	response, err := r.ControllerGetVolume(r.t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: volume})
	r.must(err)
	return response.GetStatus().GetPublishedNodeIds()
}

func TestFaultCode(t *testing.T) {
	r := newRig(t)
	r.node("node-a")
	volume, other := r.volume("data"), r.volume("other")
	r.must(r.publish(volume, "node-a"))
	r.must(r.publish(other, "node-a"))
	r.inject(simctl.Fault{Method: unpublishMethod, Volume: volume, Code: codes.Unavailable, Times: 2})
	r.must(r.unpublish(other, "node-a"))
	for range 2 {
		wantCode(t, r.unpublish(volume, "node-a"), "Unavailable")
	}
	if got := r.published(volume); len(got) != 1 {
		t.Errorf("a failed unpublish took effect: %v", got)
	}
	r.must(r.unpublish(volume, "node-a"))
}

// TestFaultEffect: the call fails and has happened all the same.
func TestFaultEffect(t *testing.T) {
	r := newRig(t)
	r.node("node-a")
	volume := r.volume("data")
	r.must(r.publish(volume, "node-a"))
	id := r.inject(simctl.Fault{Method: unpublishMethod, Code: codes.DeadlineExceeded, Effect: true})
	wantCode(t, r.unpublish(volume, "node-a"), "DeadlineExceeded")
	if got := r.published(volume); len(got) != 0 {
		t.Errorf("the unpublish had no effect: %v", got)
	}
	r.must(r.ctl.Clear(t.Context(), id))
	r.must(r.unpublish(volume, "node-a"))
}

// TestFaultHang: the call hangs, has no effect when the caller gives up, and
// goes on when it is released.
func TestFaultHang(t *testing.T) {
	r := newRig(t)
	r.node("node-a")
	volume := r.volume("data")
	r.must(r.publish(volume, "node-a"))
	id := r.inject(simctl.Fault{Method: unpublishMethod, Hang: true})

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	unpublish := func(ctx context.Context) {
		_, err := r.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: "node-a"})
		ended <- err
	}
	go unpublish(ctx)
	r.await(id, 1)
	cancel()
	wantCode(t, <-ended, "Canceled")
	if got := r.published(volume); len(got) != 1 {
		t.Errorf("a call that was given up took effect: %v", got)
	}

	go unpublish(t.Context())
	r.await(id, 2)
	r.must(r.ctl.Release(t.Context(), id))
	r.must(<-ended)
	if got := r.published(volume); len(got) != 0 {
		t.Errorf("the released call had no effect: %v", got)
	}
}

func (r *rig) await(id string, hits int) {
	r.t.Helper()
	_, err := r.ctl.AwaitHits(r.t.Context(), id, hits)
	r.must(err)
}

// TestFaultDetach: the call lands although its caller is long gone.
func TestFaultDetach(t *testing.T) {
	r := newRig(t)
	r.node("node-a")
	volume := r.volume("data")
	id := r.inject(simctl.Fault{Method: "ControllerPublishVolume", Hang: true, Detach: true})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: volume, NodeId: "node-a", VolumeCapability: oneNode()})
		ended <- err
	}()
	r.await(id, 1)
	cancel()
	wantCode(t, <-ended, "Canceled")
	r.must(r.ctl.Release(t.Context(), id))
	deadline := time.After(10 * time.Second)
	for len(r.published(volume)) == 0 {
		select {
		case <-deadline:
			t.Fatal("the call never landed")
		case <-time.After(time.Millisecond):
		}
	}
}

// TestEndWithHangingCalls: a process ends although calls hang in it, and a
// detached one has no effect then.
func TestEndWithHangingCalls(t *testing.T) {
	r := newRig(t)
	r.node("node-a")
	volume := r.volume("data")
	p := r.start("c2")
	controller := csi.NewControllerClient(p.conn)
	id, err := p.ctl.Inject(t.Context(), simctl.Fault{Method: "ControllerPublishVolume", Hang: true, Detach: true})
	r.must(err)
	ended := make(chan error, 1)
	go func() {
		_, err := controller.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: volume, NodeId: "node-a", VolumeCapability: oneNode()})
		ended <- err
	}()
	_, err = p.ctl.AwaitHits(t.Context(), id, 1)
	r.must(err)
	p.stop()
	if err := <-ended; err == nil {
		t.Error("the call succeeded")
	}
	if got := r.published(volume); len(got) != 0 {
		t.Errorf("the call took effect at the end: %v", got)
	}
}

func TestFaultDelay(t *testing.T) {
	r := newRig(t)
	const delay = 50 * time.Millisecond
	r.inject(simctl.Fault{Method: "Probe", Delay: simctl.Duration(delay)})
	p := r.start("c2")
	_, err := p.ctl.Inject(t.Context(), simctl.Fault{Method: "Probe", Delay: simctl.Duration(delay), Code: codes.Internal})
	r.must(err)
	start := time.Now()
	_, err = csi.NewIdentityClient(p.conn).Probe(t.Context(), &csi.ProbeRequest{})
	wantCode(t, err, "Internal")
	if took := time.Since(start); took < delay {
		t.Errorf("answered after %v, want %v at least", took, delay)
	}
}

// TestFaultOnNode: a node's process answers for its own calls.
func TestFaultOnNode(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume := r.volume("data")
	r.must(r.publish(volume, node.id))
	_, err := node.ctl.Inject(t.Context(), simctl.Fault{Method: "NodeStageVolume", Node: "node-b", Code: codes.Internal})
	r.must(err)
	r.must(r.stage(node, volume)) // another node's
	_, err = node.ctl.Inject(t.Context(), simctl.Fault{Method: "NodeStageVolume", Node: "node-a", Code: codes.Internal})
	r.must(err)
	wantCode(t, r.stage(node, volume), "Internal")
	_, err = node.ctl.Inject(t.Context(), simctl.Fault{Method: unpublishMethod, Code: codes.Internal})
	if err == nil {
		t.Error("a node's process took a fault for a controller's call")
	}
}

// TestDropSocket: the socket goes with all connections, and comes back.
func TestDropSocket(t *testing.T) {
	r := newRig(t)
	r.node("node-a")
	volume := r.volume("data")
	r.inject(simctl.Fault{Method: "ControllerGetVolume", Hang: true})
	ended := make(chan error, 1)
	go func() {
		_, err := r.ControllerGetVolume(t.Context(), &csi.ControllerGetVolumeRequest{VolumeId: volume})
		ended <- err
	}()
	r.await("1", 1)
	r.must(r.ctl.DropSocket(t.Context(), 300*time.Millisecond))
	if _, err := os.Stat(filepath.Join(r.run, "c")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	wantCode(t, <-ended, "Unavailable")
	_, err := r.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	wantCode(t, err, "Unavailable")
	r.must(r.ctl.Clear(t.Context()))
	_, err = r.ListVolumes(t.Context(), &csi.ListVolumesRequest{}, grpc.WaitForReady(true))
	r.must(err)
	r.must(r.publish(volume, "node-a"))
}
