// Command localcluster is a real Kubernetes control plane in one binary: etcd,
// kube-apiserver, kube-controller-manager, kube-scheduler and kubectl. Tests and
// demonstrations run it on the loopback interface; it starts no kubelet.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ha-sidecar/ha-sidecar/localcluster/internal/cluster"
	"github.com/spf13/pflag"
)

const usage = `localcluster runs a Kubernetes control plane on the loopback interface.

Usage:
  localcluster up --dir DIR [flags]          run it in the foreground
  localcluster run COMPONENT --dir DIR       run a component that it was told to leave out
  localcluster kubeconfig --dir DIR [flags]  print a kubeconfig for a node or a user
  localcluster kubectl ...                   kubectl
  localcluster COMPONENT ...                 one component: %s

"localcluster up --help" lists the flags, and so it is with run and kubeconfig.
`

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run dispatches on the first argument and returns the exit code: 2 when the
// command line is wrong, 1 when anything else is.
func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprintf(stderr, usage, strings.Join(cluster.Components, ", "))
		return 2
	}
	if component, known := commands[args[0]]; known {
		// kubectl's plugins, and cobra itself, read os.Args.
		os.Args = args
		return component()
	}
	var err error
	switch args[0] {
	case "up":
		err = up(args[1:], stdout)
	case "run":
		return runComponent(args[1:], stdout, stderr)
	case "kubeconfig":
		err = kubeconfig(args[1:], stdout)
	case "help", "-h", "--help":
		fmt.Fprintf(stdout, usage, strings.Join(cluster.Components, ", "))
	default:
		err = cluster.Usagef("%q is no command of localcluster: run localcluster help", args[0])
	}
	return exitCode(err, stderr)
}

func exitCode(err error, stderr io.Writer) int {
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	fmt.Fprintf(stderr, "localcluster: %v\n", err)
	if errors.As(err, new(cluster.UsageError)) {
		return 2
	}
	return 1
}

func up(args []string, stdout io.Writer) error {
	options, err := cluster.ParseUp(args, stdout)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// Once asked to stop, a second signal ends this process at once, and the
	// components with it.
	context.AfterFunc(ctx, stop)
	return cluster.Up(ctx, options, stdout)
}

// runComponent becomes a component of a cluster that runs without it.
func runComponent(args []string, stdout, stderr io.Writer) int {
	options, err := cluster.ParseRun(args, stdout)
	if err != nil {
		return exitCode(err, stderr)
	}
	line, release, err := cluster.CommandLine(options)
	if err != nil {
		return exitCode(err, stderr)
	}
	defer release()
	os.Args = line
	return commands[options.Component]()
}

func kubeconfig(args []string, stdout io.Writer) error {
	options, err := cluster.ParseKubeconfig(args, stdout)
	if err != nil {
		return err
	}
	return cluster.PrintKubeconfig(options, stdout)
}
