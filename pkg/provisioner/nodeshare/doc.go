// Package nodeshare shares the claims of a driver among processes that provision
// for one node each (--node-deployment). They do not know one another; what they
// agree by is the claim.
//
// A claim belongs to the node that its annotation
// volume.kubernetes.io/selected-node names. Where volumes wait for a pod, the
// scheduler writes it. Where they do not, whoever comes first does: each process
// waits a random time, looks whether its driver has room, and writes its node's
// name, provided that the claim is still as it was. The API server lets one of
// them through, and the others see who it was. A claim whose owner finds that it
// has no room loses the annotation again, and is open to all.
//
// decide.go is the decision, races.go remembers when to try, take.go writes.
package nodeshare
