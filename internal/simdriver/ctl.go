package simdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/control"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// ctl holds what all its commands share.
type ctl struct{ control, stateDir string }

func ctlCommand() *cobra.Command {
	c := &ctl{}
	root := &cobra.Command{
		Use:   "ctl",
		Short: "Make paths and calls fail, set health, and look at who has what",
		Long: "Talks to the control socket of a process (--control), or changes the state directory\n" +
			"itself (--state-dir), which is enough for everything but faults of calls, what was called, and the socket.",
		Args: usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("say what to do (see simdriver ctl --help)")}
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&c.control, "control", "", "the control socket of a process, as unix:///path/to.sock")
	flags.StringVar(&c.stateDir, "state-dir", "", "the state directory, instead of --control")
	root.AddCommand(
		c.command("fail-path VOLUME NODE", "Make every operation of the node on the volume fail", 2,
			func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
				return nil, client.FailPath(ctx, args[0], args[1])
			}),
		c.command("heal-path VOLUME NODE", "Undo fail-path", 2,
			func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
				return nil, client.HealPath(ctx, args[0], args[1])
			}),
		c.command("publications", "Show what is published to which node", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) {
				return client.Publications(ctx)
			}),
		c.command("ledger", "Show every effect so far", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) { return client.Ledger(ctx) }),
		c.command("info", "Show what the process is", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) { return client.Info(ctx) }),
		c.command("faults", "Show the faults and what they have done", 0,
			func(ctx context.Context, client *simctl.Client, _ []string) (any, error) { return client.Faults(ctx) }),
		c.command("release FAULT", "Let the calls go on that the fault hangs or delays", 1,
			func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
				return nil, client.Release(ctx, args[0])
			}),
		c.command("drop-socket DURATION", "Take the CSI socket away for so long, such as 5s", 1, dropSocket),
		c.createVolume(), c.health(), c.inject(), c.clear(),
	)
	root.AddCommand(c.provisioning()...)
	return root
}

type action func(ctx context.Context, client *simctl.Client, args []string) (any, error)

// command is one with so many arguments; -1 is any number.
func (c *ctl) command(use, short string, arguments int, do action) *cobra.Command {
	check := cobra.ArbitraryArgs
	if arguments >= 0 {
		check = cobra.ExactArgs(arguments)
	}
	return &cobra.Command{
		Use: use, Short: short, Args: usageArgs(check),
		RunE: func(command *cobra.Command, args []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			defer client.Close()
			result, err := do(command.Context(), client, args)
			if err != nil || result == nil {
				return err
			}
			if text, ok := result.(string); ok {
				_, err = fmt.Fprintln(command.OutOrStdout(), text)
				return err
			}
			encoder := json.NewEncoder(command.OutOrStdout())
			encoder.SetIndent("", "  ")
			return encoder.Encode(result)
		},
	}
}

func (c *ctl) client() (*simctl.Client, error) {
	if (c.control == "") == (c.stateDir == "") {
		return nil, usageError{errors.New("give either --control or --state-dir")}
	}
	if c.control != "" {
		client, err := simctl.Dial(c.control)
		if err != nil {
			return nil, usageError{err}
		}
		return client, nil
	}
	// A mistyped directory would otherwise become an empty state.
	if _, err := os.Stat(c.stateDir); err != nil {
		return nil, fmt.Errorf("looking for the state directory: %w", err)
	}
	store, err := state.New(state.Config{Dir: c.stateDir})
	if err != nil {
		return nil, err
	}
	handler, err := control.New(control.Config{Store: store, Info: func() control.Info {
		return control.Info{Role: "state", Fencing: true, StateDir: store.Dir()}
	}})
	if err != nil {
		return nil, err
	}
	return simctl.Direct(handler), nil
}

func dropSocket(ctx context.Context, client *simctl.Client, args []string) (any, error) {
	duration, err := time.ParseDuration(args[0])
	if err != nil || duration <= 0 {
		return nil, usageError{fmt.Errorf("%q is no duration such as 5s", args[0])}
	}
	return nil, client.DropSocket(ctx, duration)
}

func (c *ctl) createVolume() *cobra.Command {
	var capacity int64
	command := c.command("create-volume NAME", "Make a volume, or find it, and print its ID", 1,
		func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
			return client.CreateVolume(ctx, args[0], capacity)
		})
	command.Flags().Int64Var(&capacity, "capacity", 0, "capacity in bytes")
	return command
}

func (c *ctl) health() *cobra.Command {
	var volume, node string
	command := c.command("health [KIND[:REASON[:MESSAGE]]]...", "Say what is wrong with a volume or with the storage of a node; nothing: healthy", -1,
		func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
			conditions := make([]simctl.Condition, 0, len(args))
			for _, arg := range args {
				kind, rest, _ := strings.Cut(arg, ":")
				reason, message, _ := strings.Cut(rest, ":")
				conditions = append(conditions, simctl.Condition{Kind: kind, Reason: reason, Message: message})
			}
			switch {
			case volume != "":
				return nil, client.SetHealth(ctx, volume, node, conditions...)
			case node != "":
				return nil, client.SetStorageHealth(ctx, node, conditions...)
			}
			return nil, usageError{errors.New("give --volume, --node or both")}
		})
	command.Long = "Kinds of a volume: degraded, inaccessible, data-loss, abnormal. Kinds of a node's storage: degraded, unreachable."
	command.Flags().StringVar(&volume, "volume", "", "the volume; without it, the storage of --node")
	command.Flags().StringVar(&node, "node", "", "as this node sees it; without it, as the controller does")
	return command
}

func (c *ctl) clear() *cobra.Command {
	return c.command("clear [FAULT]...", "Take away faults, all if none is named", -1,
		func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
			return nil, client.Clear(ctx, args...)
		})
}

func (c *ctl) inject() *cobra.Command {
	var f simctl.Fault
	var delay time.Duration
	var code string
	command := c.command("inject METHOD", "Make calls of this process go wrong, and print the fault's ID", 1,
		func(ctx context.Context, client *simctl.Client, args []string) (any, error) {
			f.Method, f.Delay = args[0], simctl.Duration(delay)
			if err := f.Code.UnmarshalJSON([]byte(strconv.Quote(code))); err != nil {
				return nil, usageError{fmt.Errorf("--code %q is no gRPC code such as UNAVAILABLE", code)}
			}
			if err := f.Validate(); err != nil {
				return nil, usageError{err}
			}
			return client.Inject(ctx, f)
		})
	flags := command.Flags()
	flags.StringVar(&f.Volume, "volume", "", "only calls for the volume of this ID; for CreateVolume, its name does too")
	flags.StringVar(&f.Node, "node", "", "only calls for this node")
	flags.StringVar(&code, "code", codes.OK.String(), "answer with this gRPC code, such as UNAVAILABLE")
	flags.StringVar(&f.Message, "message", "", "and with this message")
	flags.DurationVar(&delay, "delay", 0, "wait so long")
	flags.BoolVar(&f.Hang, "hang", false, "hang until released")
	flags.BoolVar(&f.Effect, "effect", false, "apply the call first, although it fails")
	flags.BoolVar(&f.Detach, "detach", false, "go on although the caller has given up")
	flags.IntVar(&f.Times, "times", 0, "happen to so many calls; 0 is all")
	return command
}
