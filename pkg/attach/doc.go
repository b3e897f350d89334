// Package attach makes VolumeAttachments true: it calls
// ControllerPublishVolume and ControllerUnpublishVolume of one CSI driver and
// records the results, as external-attacher does and under the same names.
//
// What is wanted is read from the API alone: a VolumeAttachment that is neither
// being deleted nor fenced wants its volume on its node. What is there is kept
// in a ledger, a State for each volume and node, which a new process or a new
// leader rebuilds from the VolumeAttachments: our finalizer with the node ID is
// the intent, written before the driver is called; status.attached is the
// commit, written after.
//
// The files go from the pure to the effectful: transition.go decides (and is
// searched exhaustively by its tests), ledger.go and claim.go hold the states
// and let one call at a time through, work.go drives, publish.go, unpublish.go
// and fence.go talk to the driver, patch.go and status.go to the API.
//
// A volume that may be on one node only is never published to a second one
// while the first may still have it: not after a timeout, whose effect nobody
// knows, not across a restart, and not across a change of leader.
package attach
