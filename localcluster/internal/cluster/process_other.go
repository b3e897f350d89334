//go:build !linux

package cluster

import "syscall"

// dieWithParent does nothing: only Linux ties a process to its parent.
func dieWithParent(*syscall.SysProcAttr) {}
