//go:build !linux

package process

import "syscall"

// stopWithParent: only Linux can signal the child of a dead parent.
func stopWithParent(*syscall.SysProcAttr) {}
