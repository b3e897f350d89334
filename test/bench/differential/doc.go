// Package differential holds the caches of pkg/attach/cache, in mode Modern,
// against those of Kubernetes' attach-detach controller: the same random
// operations on both, and after each of them everything that can be seen.
//
// One difference is meant: Kubernetes takes a volume for mounted from the moment
// it is added until the node tells otherwise, and ours only what the node has
// told. The comparison takes those assumptions out, see assumed. What Kubernetes
// does not have any more, such as SetVolumeMountedByNode for one pair, is not
// compared.
package differential
