// Command attach measures how fast VolumeAttachments are attached and detached,
// on a real control plane and beside kubernetes-csi's external-attacher: the
// same API server, the same driver, the same ServiceAccount, in turn.
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
	flag.StringVar(&o.out, "out", "bench-out", "directory of attach.json and of the logs")
	flag.IntVar(&o.volumes, "volumes", 500, "VolumeAttachments of a run")
	flag.IntVar(&o.runs, "runs", 5, "runs of each side; 0 leaves the comparison out")
	flag.IntVar(&o.peerVolumes, "peer-default-volumes", 60, "VolumeAttachments of a run of external-attacher with its defaults, which takes its time")
	flag.IntVar(&o.peerRuns, "peer-default-runs", 5, "runs of external-attacher with its defaults")
	flag.IntVar(&o.managed, "managed-volumes", 100, "pods of a run for which kube-controller-manager makes the VolumeAttachments; 0 leaves that out")
	flag.IntVar(&o.managedRuns, "managed-runs", 5, "runs of each side with pods")
	flag.IntVar(&o.hanging, "hanging", 1000, "detaches that hang while others are attached; 0 leaves them out")
	flag.StringVar(&o.only, "only", "", "measure only DEFAULT, TUNED, BACKLOG or MANAGED")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	switch {
	case errors.Is(err, errMissed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintf(os.Stderr, "attach: %v\n", err)
		os.Exit(2)
	}
}
