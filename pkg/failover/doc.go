// Package failover turns verdicts about volumes into the names of
// PersistentVolumes whose current user cannot write, and feeds them into the
// failing-PV channel. It touches nothing in the cluster, events excepted.
//
// Every look at the cluster is one immutable Snapshot, and Decide, a pure
// function, answers for every unwell (volume, node) with an action, the reasons
// for and against it one by one, and when to look again. A refusal is an
// answer too.
//
// The unit of a move is the closure: on the failing node, the pods that use the
// volume, all volumes of those pods, and all pods there that use those. One pod
// that may not be touched, or one writable volume that cannot be fenced, vetoes
// the whole of it. Not knowing is never a reason to delete: what is missing
// from the snapshot makes the answer "wait".
//
// The brakes are kept in Memory, which goes into Decide with the snapshot and
// comes out of it with the decision: the breaker, which counts nodes; the rate,
// which counts pods; the backoff of workloads that fail over again and again;
// and the moves granted so far, so that nothing is counted twice. It lives as
// long as the process: a new leader starts with a hold-off instead.
package failover
