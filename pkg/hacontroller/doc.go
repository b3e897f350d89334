// Package hacontroller moves pods off storage that has failed. It is told the
// name of a PersistentVolume whose current user cannot write, and removes that
// user: the pods on the failing node, then the VolumeAttachments, so that
// Kubernetes starts the pods where the volume works. It is the only package
// that destroys anything.
//
// It works in one of two ways.
//
// Alone, given nothing but a client and a channel, it does what its sender
// vouches for: the pods that use the volume on the attachment's node are
// deleted, then the attachment.
//
// With WithTargets, every name is only a hint. The closure to move comes from
// the Targeter, is read again live, and is walked through steps of which each is
// idempotent and checks the lease and the UIDs again:
//
//	hold         a NoSchedule taint and an annotation keep new pods off the node
//	ask          the node is Ready: the pods are evicted and the kubelet unmounts
//	record       the whole plan, on every VolumeAttachment; from here there is no way back
//	fence        the Fencer revokes the node's access, acknowledged for all volumes
//	pods         marked Failed, then deleted with grace period 0
//	attachments  deleted, once a live read shows the pods gone
//	unhold       the hold comes off once the node is clean and the volume has recovered
//
// What a step does next is decided by pure functions of what was read live
// (decide.go, hold.go); what is remembered between two passes is only when
// something was tried. So a successor continues from the API alone.
package hacontroller
