// Command demo shows the main job on a real control plane: a stateful pod
// leaves storage that its node cannot reach, once gracefully and once past a
// node whose agent hangs in killing the container, and goes on elsewhere from the
// last byte it wrote.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	keep := flag.Bool("keep", false, "leave the cluster up at the end, until Ctrl-C")
	out := flag.String("out", "demo-out", "directory of the results")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, *out, *keep)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		os.Exit(1)
	}
}
