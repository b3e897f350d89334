// Package attach tests attach and detach on a real control plane, with a real
// driver behind a wire that notes every call. Its tests bear the name of the
// public bug report that each is about: EA is external-attacher, EP
// external-provisioner, KK Kubernetes. Cases that need no real parts are tested
// in pkg/attach.
//
// All share one world. Tests that replace the sidecar, end
// kube-controller-manager or change what concerns everybody run first, one by
// one; the others run side by side after them, each with volumes of its own.
//
// What has no test here, since it is not the attacher's: what
// kube-controller-manager keeps of a node's report (KK32807, in
// pkg/attach/cache), and how long it takes over many nodes (KK101229, KK119528).
package attach
