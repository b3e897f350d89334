// Package faults kills ha-sidecar at every write to the API server and every
// call to the driver that an attach, a detach, a fence, a provision and a delete
// are made of: before it, with its reply lost, and after it. Another process then goes on, and what
// must hold at all times and in the end is checked on the driver's own ledger.
//
// All parts are real. ha-sidecar reaches the API server and the driver through
// two proxies in the test's process, which know each request by name and spring
// the trap.
package faults
