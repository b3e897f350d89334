package app

import (
	"context"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach"
	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/hacontroller"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// guarded refuses calls that change something at the driver once the lease has
// run out: the last of the guards on the way.
type guarded struct {
	*csiclient.Client
	leader hacontroller.LeaderElector
}

// ControllerPublish calls the driver while the lease is held.
func (g guarded) ControllerPublish(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if !g.leader.IsLeader() {
		return nil, notSent{"ControllerPublishVolume"}
	}
	return g.Client.ControllerPublish(ctx, req)
}

// ControllerUnpublish calls the driver while the lease is held.
func (g guarded) ControllerUnpublish(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if !g.leader.IsLeader() {
		return nil, notSent{"ControllerUnpublishVolume"}
	}
	return g.Client.ControllerUnpublish(ctx, req)
}

// CreateVolume calls the driver while the lease is held.
func (g guarded) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if !g.leader.IsLeader() {
		return nil, notSent{"CreateVolume"}
	}
	return g.Client.CreateVolume(ctx, req)
}

// DeleteVolume calls the driver while the lease is held.
func (g guarded) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if !g.leader.IsLeader() {
		return nil, notSent{"DeleteVolume"}
	}
	return g.Client.DeleteVolume(ctx, req)
}

// notSent is a call that was held back, and so had no effect.
type notSent struct{ method string }

// Error tells what was held back.
func (n notSent) Error() string { return fmt.Sprintf("%s: %v", n.method, kube.ErrNotLeader) }

// Unwrap makes errors.Is find kube.ErrNotLeader.
func (n notSent) Unwrap() error { return kube.ErrNotLeader }

// Outcome is that nothing has happened.
func (n notSent) Outcome() volume.Outcome { return volume.OutcomeRetry }

// unpublishFence is --fence=unpublish: the operator's word that the driver's
// ControllerUnpublishVolume revokes access.
type unpublishFence struct{ attacher *attach.Controller }

// Fence unpublishes in the lane that attach uses for the volume.
func (f unpublishFence) Fence(ctx context.Context, va *storagev1.VolumeAttachment) error {
	return f.attacher.Fence(ctx, va)
}

// Unfence has nothing to lift: the next publish gives access again.
func (f unpublishFence) Unfence(context.Context, string) error { return nil }

// attachable reports whether volumes must be published before a node may use
// them.
func attachable(caps csiclient.Capabilities) bool {
	return caps.Has(csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
}

// publishCapabilities picks what shapes a publish request.
func publishCapabilities(caps csiclient.Capabilities) attach.Capabilities {
	return attach.Capabilities{
		PublishReadOnly:       caps.Has(csi.ControllerServiceCapability_RPC_PUBLISH_READONLY),
		SingleNodeMultiWriter: caps.Has(csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER),
		TellsPublished:        caps.TellsPublished(),
	}
}

// attachHoldOff is how long keys that an earlier leader may have calls under
// way for are left alone: the longest deadline of such a call. That one's
// --timeout is not known here, and may have been longer than ours; --hold-off
// lets people say so.
func (o *Options) attachHoldOff() time.Duration {
	return max(pick(o.Attacher.Timeout, o.Timeout), o.Failover.Policy.HoldOff)
}

// fenceTimeout bounds one fence: what attach may have to wait for (the hold-off
// and a call under way) and the call itself.
func (o *Options) fenceTimeout() time.Duration {
	return o.attachHoldOff() + 2*pick(o.Attacher.Timeout, o.Timeout)
}
