package simdriver

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// provisioning are the commands about what CreateVolume does.
func (c *ctl) provisioning() []*cobra.Command {
	return []*cobra.Command{
		c.command("volumes", "Show the volumes that exist", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) { return client.Volumes(ctx) }),
		c.command("snapshots", "Show the snapshots that exist", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) {
				return client.Snapshots(ctx)
			}),
		c.command("capacity", "Show the limits of capacity", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) { return client.Limits(ctx) }),
		c.command("counts", "Show how often each method of the process was called", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) { return client.Counts(ctx) }),
		c.setCapacity(), c.calls(), c.misbehave(),
	}
}

// noLimit is the word that takes a limit away.
const noLimit = "none"

func (c *ctl) setCapacity() *cobra.Command {
	var segments map[string]string
	var largest int64
	command := c.command("set-capacity BYTES|none", "Limit the storage of a segment, or of each that has no limit of its own", 1,
		func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
			limit := simctl.Limit{Segments: segments}
			if args[0] != noLimit {
				bytes, err := strconv.ParseInt(args[0], 10, 64)
				if err != nil || bytes < 0 {
					return nil, usageError{fmt.Errorf("%q is no number of bytes, and not %q", args[0], noLimit)}
				}
				limit.Bytes = &bytes
			}
			if largest < 0 {
				return nil, usageError{errors.New("--max-volume-size is negative")}
			}
			if largest > 0 {
				limit.MaximumVolumeSize = &largest
			}
			return nil, client.SetLimit(ctx, limit)
		})
	command.Flags().StringToStringVar(&segments, "segments", nil, "the segments, key=value,...; without, each segment that has no limit of its own")
	command.Flags().Int64Var(&largest, "max-volume-size", 0, "the size of the largest volume in bytes; 0 is no bound")
	return command
}

func (c *ctl) calls() *cobra.Command {
	var method string
	command := c.command("calls", "Show the calls of the process about volumes and snapshots, without the values of secrets", 0,
		func(ctx context.Context, client *simctl.Client, _ []string) (any, error) {
			return client.Calls(ctx, method)
		})
	command.Flags().StringVar(&method, "method", "", "only calls of this method")
	return command
}

func (c *ctl) misbehave() *cobra.Command {
	var mode simctl.Misbehavior
	var create string
	command := c.command("misbehave", "Break the contract of CSI in replies; without flags, behave again", 0,
		func(ctx context.Context, client *simctl.Client, _ []string) (any, error) {
			mode.Create = misbehave.Create(create)
			if err := mode.Validate(); err != nil {
				return nil, usageError{err}
			}
			return nil, client.Misbehave(ctx, mode)
		})
	command.Flags().StringVar(&create, "create", "", "how CreateVolume replies: smaller, other-id, no-volume, no-source or empty-topology")
	command.Flags().StringVar(&mode.Name, "name", "", "only for the volume of this name")
	return command
}

// checkProvisioning says what is wrong with the flags that topology and capacity
// have.
func checkProvisioning(cfg *Config, topology map[string]string) error {
	for key, value := range topology {
		if key == "" || value == "" {
			return fmt.Errorf("--topology %q=%q: give keys and values", key, value)
		}
	}
	cfg.NodeTopology = state.Segments(topology)
	if cfg.Capacity < 0 || cfg.MaximumVolumeSize < 0 {
		return errors.New("--capacity and --max-volume-size must not be negative")
	}
	if cfg.NodeID != "" && !cfg.LocalController && (cfg.Capacity > 0 || cfg.MaximumVolumeSize > 0) {
		return errors.New("--capacity and --max-volume-size are the controller's: they need --controller on a node")
	}
	if cfg.LocalController && len(topology) == 0 {
		return errors.New("--controller is for where the node is: it needs --topology")
	}
	return nil
}
