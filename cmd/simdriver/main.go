// Command simdriver is a CSI driver for demonstrations and tests.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := simdriver.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
