// Command ha-sidecar runs beside a CSI driver's controller plugin: it attaches
// the driver's volumes, watches their health and moves stateful pods off
// storage that has failed.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/ha-sidecar/ha-sidecar/cmd/ha-sidecar/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(app.Main(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
