// Package source knows the data sources of claims: the VolumeSnapshot or the
// PersistentVolumeClaim that a new volume begins as a copy of.
//
// A Resolver checks a claim's source and turns it into what CreateVolume wants.
// It only reads, and only from the API server: an informer that lags could name
// a snapshot or a volume that is gone, or that has become another one.
//
// Protection keeps a source from vanishing while a volume is made of it, by
// external-provisioner's finalizers, and takes them off again. Who needs a source
// is asked of three: the claims that wait for a volume, the calls of this process
// (Protect and Release), and the caller's journal of intents (InUse), which speaks
// for claims that are gone and for calls of a former leader.
//
// The files go from the pure to the effectful: ref.go reads a claim,
// checksnapshot.go and checkclone.go decide, resolver.go and live.go read,
// users.go and holds.go know who needs a source, protection.go, work.go and
// sweep.go write.
package source
