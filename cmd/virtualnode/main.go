// Command virtualnode is a node agent on a CSI driver's node socket: it registers
// a Node, runs the pods bound to it as processes, and fails on demand. See
// pkg/kri/virtualnode.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run()) }

// run returns 0, 1 for a failure, or 2 for a wrong command line.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := newCommand().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "virtualnode:", err)
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		return 2
	}
	return 1
}
