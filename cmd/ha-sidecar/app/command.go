// Package app is the composition root: flags, the connection to the driver,
// the election, and the table of controllers. It is the only package that
// knows everyone.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"github.com/ha-sidecar/ha-sidecar/internal/version"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// UsageError is a mistake in the command line.
type UsageError struct{ Err error }

// Error tells all mistakes, separated by semicolons, on one line.
func (e *UsageError) Error() string { return oneLine(e.Err) }

// Unwrap gives the joined mistakes.
func (e *UsageError) Unwrap() error { return e.Err }

// Main runs the command line args and returns the exit code. What goes wrong
// is one line on stderr.
func Main(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newCommand(ctx)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	logs.FlushLogs()
	var usage *UsageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(stderr, "ha-sidecar: %s; see ha-sidecar --help\n", usage)
		return exitUsage
	default:
		_, _ = fmt.Fprintf(stderr, "ha-sidecar: %s\n", oneLine(err))
		return exitFailure
	}
}

func newCommand(ctx context.Context) *cobra.Command {
	opts := NewOptions()
	cmd := &cobra.Command{
		Use:   "ha-sidecar",
		Short: "Provision and attach a CSI driver's volumes, watch their health, and move pods off failed storage",
		Long: "ha-sidecar runs beside a CSI driver's controller plugin and talks to it over --csi-address.\n" +
			"It replaces external-provisioner, external-attacher and external-health-monitor-controller for\n" +
			"that driver, and moves stateful pods off storage that their node cannot reach.",
		Version:       version.Get().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(opts.Validate()...); err != nil {
				return &UsageError{err}
			}
			if err := logsapi.ValidateAndApply(opts.Logs, nil); err != nil {
				return &UsageError{err}
			}
			return Run(cmd.Context(), opts)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{err} })
	opts.AddFlags(cmd.Flags())
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.AddCommand(newVersionCommand())
	cmd.SetContext(ctx)
	return cmd
}

func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &UsageError{fmt.Errorf("unexpected argument %q", args[0])}
	}
	return nil
}

func newVersionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch output {
			case "":
				_, err := fmt.Fprintln(cmd.OutOrStdout(), version.Get())
				return err
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(version.Get())
			default:
				return &UsageError{fmt.Errorf("--output=%q: only json is known", output)}
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "json, or empty for one line")
	return cmd
}

// oneLine keeps an error to a line: a log collector takes each line for a
// message of its own.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
