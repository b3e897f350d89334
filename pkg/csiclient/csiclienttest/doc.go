// Package csiclienttest has a CSI driver for tests: a real gRPC server on a
// unix socket whose every reply can be scripted, down to the bytes on the wire.
package csiclienttest
