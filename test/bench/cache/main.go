// Command cache measures the caches of pkg/attach/cache, in mode Modern, beside
// those of Kubernetes' attach-detach controller: the same attachments in both,
// in turn.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
)

func main() {
	var o options
	flag.StringVar(&o.out, "out", "bench-out", "directory of cache.json")
	flag.IntVar(&o.runs, "runs", 5, "runs of each side")
	flag.IntVar(&o.largest, "largest", 100_000, "leave worlds of more attachments out")
	flag.Parse()
	switch err := run(o); {
	case errors.Is(err, errMissed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "cache: %v\n", err)
		os.Exit(2)
	}
}
