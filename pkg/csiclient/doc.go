// Package csiclient is the CSI driver at its socket: the connection, who the
// driver is and what it can do, calls with a deadline each, and what a failed
// call leaves behind.
//
// Three things set it apart from a plain gRPC stub.
//
// A connection is one session. A session dials once; when its connection is
// gone it is over, and nothing is sent until a new one has been opened and the
// driver behind it has been probed, has said its name and its capabilities. So
// no call ever reaches a driver that was not looked at first, even if another
// one took over the socket between two calls.
//
// Every error is a *CallError that carries a volume.Outcome: whether the call
// had no effect for good, had none yet, or may have had one. The rulings are
// one table, in outcome.go.
//
// Both generations of volume health are spoken, behind Sweep: the health calls
// of CSI 1.13, and the VolumeCondition of CSI 1.3 to 1.12, which arrives as a
// capability number and as a field that CSI 1.13 no longer knows.
package csiclient
