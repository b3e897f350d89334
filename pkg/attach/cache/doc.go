// Package cache keeps which volumes are attached to which nodes, and which
// should be: the actual and the desired state of the world.
//
// # Modes
//
// The interfaces are those that Kubernetes' attach/detach controller had in
// version 1.4, and in mode Seed so are the rules, to the letter. Mode Modern has
// the rules that Kubernetes has come to since, and where it is known to be wrong
// still, better ones. The modes differ in:
//
//   - The flag that a node has to be reported. Seed: it stays until
//     ResetNodeStatusUpdateNeeded, so that a volume that is added between the
//     report and the reset is never reported. Modern: taking the report resets
//     it; the reset does nothing. (Kubernetes 1.5)
//   - SetVolumeMountedByNode(false). Seed: without effect unless true came
//     before, so that a volume that was never mounted looks mounted forever.
//     Modern: it always holds. (1.9)
//   - MountedByNode of a new pair. Seed: true, so that the detach of a volume
//     whose attach failed waits for minutes. Modern: whether the node's last list
//     names the volume; what it names holds also for a pair that is deleted and
//     added again. (After 1.37)
//   - Spec and device path. Seed: of the volume, the last writer wins, so that one
//     node is reported with the device of another. Modern: of the pair.
//   - The name given to MarkVolumeAsAttached. Seed: ignored. Modern: taken, and
//     then the spec may be nil. (1.6: after a restart nothing else is known)
//
// The same in both are the methods that the seed has not: uncertain pairs
// (1.14: an attach that times out may yet take effect), the report of one node
// (1.23), and SetNodeStatusUpdateNeeded, which leaves an unknown node unknown. A
// nil spec never replaces one that is known. Times are of this process: after a
// restart every detach request begins anew. The desired state has no modes.
//
// # Locks
//
// In the actual state, pairs hang on their volume and on their node. Volumes are
// in stripes by hash. The locks are taken in this order, from left to right,
// and no goroutine waits for one that is to the left of one that it has:
//
//	stripes of volumes, ascending < nodes, by name < the node table's stripes, dirtyNodes.mu
//
// (Nothing takes a lock while it has one of the last two.) So there is no
// circle, and no deadlock. A goroutine that has a node's lock has a stripe's as
// well, unless it only reads. One that needs a single stripe takes no second one.
//
// What guards what:
//
//   - Every change is made with some stripe locked: that of the volume, or for
//     changes that concern a node as a whole, the one of the node's name. Hence
//     whoever has all stripes, be it for reading, sees a world that stands still.
//   - Which pairs a volume has, and pair.confirmed, change only under the lock of
//     the volume's stripe and may be read under it.
//   - node.pairs, node.inUse, and all fields of a pair, change only under the
//     node's lock (and a stripe's), and may be read under it.
//   - node.known, node.flagged: written and read under the node's lock and a
//     stripe's, or with all stripes.
//   - dirtyNodes.list and node.dirtyAt: under dirtyNodes.mu and a stripe's lock,
//     or with all stripes.
//   - pair.node, pair.volume and node.name never change once others can see them.
//
// Hence each method takes effect at one instant. A change holds the locks of all
// that it touches until it is done, and each reader holds one that excludes it:
// the volume's stripe, the node, or all stripes. (In mode Seed a new device path
// touches all nodes of the volume, and so all of them are locked.) Only
// GetVolumesToReportAttached reads without a lock, and only whether
// dirtyNodes.count is zero: the count changes within the change that flags the
// node, so that zero means that no change which is done has flagged one, and the
// report is empty at that very instant.
package cache
