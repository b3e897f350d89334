package testcluster

import "syscall"

// stopWithParent lets no control plane outlive a test that was killed.
func stopWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
