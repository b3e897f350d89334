//go:build !linux

package testcluster

import "syscall"

// stopWithParent does nothing: only Linux ties a process to its parent.
func stopWithParent(*syscall.SysProcAttr) {}
