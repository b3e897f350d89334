package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// usageError is a wrong command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

func newCommand() *cobra.Command {
	opts := newOptions()
	cmd := &cobra.Command{
		Use:           "virtualnode --name NODE --kubeconfig FILE --root-dir DIR",
		Short:         "A Kubernetes node that runs pods as processes and mounts CSI volumes",
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return opts.run(cmd.Context()) },
	}
	opts.addFlags(cmd.Flags())
	cmd.AddCommand(newCtlCommand())
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	return cmd
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &usageError{fmt.Errorf("unexpected arguments: %s", strings.Join(args, " "))}
	}
	return nil
}

// required names the flags that are missing.
func required(flags map[string]string) error {
	var missing []string
	for _, name := range []string{"name", "kubeconfig", "root-dir", "control"} {
		if value, asked := flags[name]; asked && value == "" {
			missing = append(missing, "--"+name)
		}
	}
	if len(missing) > 0 {
		return &usageError{errors.New("missing " + strings.Join(missing, ", "))}
	}
	return nil
}
