package process

import "syscall"

// stopWithParent has the kernel stop the child when the parent is gone.
func stopWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
