// Package health turns readings of volume health into verdicts.
//
// Three sources are heard. The controller plugin is asked again and again (a
// sweep); the kubelets store what their node plugins say in
// Pod.status.volumeHealth and CSINode.status.storageHealth, on change only. A
// verdict is confirmed by a number of consecutive answers where the source is
// polled, and by age on this process's own clock where it is stored: then a
// live read must still say the same, and the node's Lease must be seen to be
// renewed, since the status of a dead kubelet stays as it was.
//
// What is believed lives in the tracker, a state machine without clock, client
// or goroutine. The Monitor around it owns the event loop, the sweeps and the
// live reads; it writes PersistentVolumeClaim.status.healthStatus and the events
// VolumeConditionAbnormal, VolumeConditionNormal and VolumeConditionUnknown. It moves nothing.
package health
