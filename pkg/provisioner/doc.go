// Package provisioner makes PersistentVolumes for PersistentVolumeClaims and
// deletes them again: the controller, for any Provisioner. The Provisioner of CSI
// drivers is pkg/provisioner/csiprovisioner.
//
// The files go from the pure to the effectful: should.go decides what is ours
// to do, operation.go remembers what was begun, claims.go and volumes.go are the
// two queues, provision.go and save.go make a volume and its PersistentVolume,
// delete.go, twins.go and finalizer.go take them away.
//
// A volume is never forgotten once it may exist. While the outcome of a call is
// not known, the same call is made again, whatever becomes of the claim; when it
// has succeeded, the PersistentVolume is saved, and if the claim has gone
// meanwhile it says Delete, so that the volume goes the one way that all go.
//
// # Where the seed and today differ
//
// NewProvisionController keeps the parameters of the controller that
// external-storage had in 2017, and what they say holds:
//
//   - serverGitVersion: before 1.5 the class's provisioner decides whose a claim
//     is, from 1.5 on the claim's annotation alone; before 1.5 a volume that
//     Failed is deleted as one that is Released; before 1.6 the class is named by
//     the annotation volume.beta.kubernetes.io/storage-class on the
//     PersistentVolume as well. A version that cannot be read panicked there; here
//     Run tells of it.
//   - exponentialBackOffOnError: true doubles the pause after each failure, from
//     500 ms to 2 min; false tries again every resyncPeriod. There a retry waited
//     for an event or a resync; here it has its own timer.
//   - failedRetryThreshold: so many failures of a claim's Provision, and it is
//     left alone until the process starts again; 0 gives up after the first. What
//     may have been made is never given up.
//
// For the rest today's rules hold:
//
//   - The annotation volume.kubernetes.io/storage-provisioner, then its beta form,
//     names the provisioner; the seed looked for pv.kubernetes.io/provisioned-by on
//     the claim, by mistake.
//   - The class is that of the beta annotation, then spec.storageClassName.
//   - Claims of a class with WaitForFirstConsumer wait for a selected node.
//   - The reclaim policy is the class's, and mount options, volume mode and class
//     name are copied; the seed always said Delete.
//   - A PersistentVolume that cannot be saved is tried for ever. The seed deleted
//     the volume after five times, and also after AlreadyExists, when the
//     PersistentVolume was there.
//   - PersistentVolumes carry a finalizer until their volume is deleted, and
//     volumes that were Released before the start are deleted too.
//   - One process acts, by its lease; the seed held an election for each claim.
package provisioner
