// Command failoverbench measures failovers on a real control plane: one at a
// time and a hundred at once, beside what the control plane needs for the same
// move when nobody has to decide on it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	var o options
	flag.StringVar(&o.out, "out", "bench-out", "directory of the results")
	flag.IntVar(&o.failovers, "failovers", 50, "failovers one at a time; 0 leaves them out")
	flag.IntVar(&o.volumes, "volumes", 100, "volumes that fail at once; 0 leaves them out")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	switch {
	case errors.Is(err, errMissed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "failoverbench: %v\n", err)
		os.Exit(2)
	}
}
