// Package attach makes VolumeAttachments true: it calls
// ControllerPublishVolume and ControllerUnpublishVolume of one CSI driver and
// records the results, as external-attacher does and under the same names.
//
// It reconciles two caches, see pkg/attach/cache. The desired state is read from
// the API alone: a VolumeAttachment that is neither being deleted nor fenced
// wants its volume on its node. The actual state is what calls to the driver
// left behind. A new process or a new leader rebuilds both from the
// VolumeAttachments: our finalizer with the node ID is the intent, written
// before the driver is called; status.attached is the commit, written after.
//
// The files go from the pure to the effectful: transition.go decides (and is
// searched exhaustively by its tests), world.go holds the states, ledger.go who
// speaks of them, claim.go lets one call at a time through, work.go drives,
// publish.go, unpublish.go and fence.go talk to the driver, patch.go and
// status.go to the API.
//
// A volume that may be on one node only is never published to a second one
// while the first may still have it: not after a timeout, whose effect nobody
// knows, not across a restart, and not across a change of leader.
package attach
