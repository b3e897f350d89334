// Command provision measures how fast volumes are provisioned and deleted, on a
// real control plane, beside kubernetes-csi's external-provisioner and beside
// what kube-controller-manager lets anybody reach: the same API server and the
// same driver, in turn.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.out, "out", "bench-out", "directory of provision.json and of the logs")
	flag.StringVar(&o.only, "only", "", "measure only these settings, of "+names(settings)+", with commas")
	flag.StringVar(&o.sides, "sides", names(allSides), "who is measured, with commas; the bars need all")
	flag.IntVar(&o.runs, "runs", 3, "runs of each side in each setting")
	flag.IntVar(&o.claims, "claims", 500, "claims of a run in TUNED and in UNLIMITED")
	flag.IntVar(&o.shipped, "default-claims", 100, "claims of a run in DEFAULT, where kube-controller-manager takes its time")
	flag.IntVar(&o.memory, "memory", 10000, "bound claims, each with its PersistentVolume, in MEMORY")
	flag.DurationVar(&o.latency, "latency", 0, "how long the driver takes for a CreateVolume or a DeleteVolume")
	flag.IntVar(&o.segments, "segments", 500, "nodes, each a place of its own, in CAPACITY")
	flag.DurationVar(&o.capacity, "capacity-time", 3*time.Minute, "how long each run in CAPACITY is looked at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	switch {
	case errors.Is(err, errMissed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "provision: %v\n", err)
		os.Exit(2)
	}
}
