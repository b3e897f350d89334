// Package csiprovisioner provisions the volumes of one CSI driver: it is the
// Provisioner that pkg/provisioner drives.
//
// One reading: provision.go is the way of a claim. plan.go makes the whole
// request from claim, class and cluster (parameters.go, secrets.go,
// capability.go, attributes.go, migration.go), intent.go and begun.go put it into the
// journal, create.go calls the driver, reply.go looks at the answer and volume.go
// makes the PersistentVolume of it. delete.go is the way back.
//
// Before CreateVolume is called its whole request is in the journal, secrets by
// reference. From then on that request is made and no other, until its outcome is
// known: whatever becomes of claim, class, node, source or secret, and whoever
// leads. So a volume that was made is always found again.
package csiprovisioner
