package cluster

import "syscall"

// dieWithParent lets no component outlive a parent that had no chance to stop
// it.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
