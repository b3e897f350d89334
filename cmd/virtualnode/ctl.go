package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// newCtlCommand is the client of the control socket: status, release, and every
// fault by its name.
func newCtlCommand() *cobra.Command {
	var control string
	cmd := &cobra.Command{
		Use:   "ctl --control SOCKET status | release [FAULT...] | FAULT",
		Short: "Ask a running virtual node, or make it fail",
		Long: "Faults: hang-kill, partition and hung-ping last until released; crash kills the agent,\n" +
			"power-off the agent and its containers.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := required(map[string]string{"control": control}); err != nil {
				return err
			}
			return ctl(cmd, nodectl.New(control), args)
		},
	}
	cmd.Flags().StringVar(&control, "control", "", "the node's control socket")
	return cmd
}

func ctl(cmd *cobra.Command, client *nodectl.Client, args []string) error {
	if len(args) == 0 {
		return &usageError{errors.New("missing what to do: status, release or a fault")}
	}
	faults, err := parseFaults(args[1:])
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	switch args[0] {
	case "status":
		status, err := client.Status(ctx)
		if err != nil {
			return err
		}
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(status)
	case "release":
		return client.Release(ctx, faults...)
	}
	first, err := parseFaults(args[:1])
	if err != nil {
		return err
	}
	for _, f := range append(first, faults...) {
		if err := client.Inject(ctx, f); err != nil {
			return fmt.Errorf("switching %s on: %w", f, err)
		}
	}
	return nil
}

func parseFaults(names []string) ([]nodectl.Fault, error) {
	var out []nodectl.Fault
	for _, name := range names {
		f, err := nodectl.ParseFault(strings.TrimSpace(name))
		if err != nil {
			return nil, &usageError{err}
		}
		out = append(out, f)
	}
	return out, nil
}
