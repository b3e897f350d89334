package simdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/server"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a mistake on the command line.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// Main runs the command line until ctx ends and gives the exit code: 0, 2 for a
// mistake on the command line, 1 for everything else. Errors are one line each.
func Main(ctx context.Context, args []string, out, errOut io.Writer) int {
	command := newCommand()
	command.SetArgs(args)
	command.SetOut(out)
	command.SetErr(errOut)
	err := command.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintln(errOut, "simdriver:", strings.ReplaceAll(err.Error(), "\n", "; "))
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailure
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "simdriver",
		Short: "A CSI driver on directories whose fence really fences, for demonstrations and tests",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return usageError{errors.New("say what to run: controller, node or ctl (see --help)")}
		},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	root.AddCommand(serveCommand("controller"), serveCommand("node"), ctlCommand())
	return root
}

// usageArgs makes errors about arguments usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if err := check(command, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// serveCommand is the command of one role.
func serveCommand(role string) *cobra.Command {
	var cfg Config
	var dialect string
	var topology map[string]string
	command := &cobra.Command{
		Use:   role + " --endpoint unix:///PATH --state-dir DIR",
		Short: "Serve the Identity and " + strings.ToUpper(role[:1]) + role[1:] + " services",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			if role == "node" && !state.ValidNodeID(cfg.NodeID) {
				return usageError{fmt.Errorf("--node-id %q is not allowed: give the name of the node", cfg.NodeID)}
			}
			if err := checkServe(&cfg, dialect); err != nil {
				return usageError{err}
			}
			if err := checkProvisioning(&cfg, topology); err != nil {
				return usageError{err}
			}
			driver, err := New(cfg)
			if err != nil {
				return err
			}
			return driver.Run(command.Context())
		},
	}
	flags := command.Flags()
	flags.StringVar(&cfg.Endpoint, "endpoint", "", "the CSI socket, as unix:///path/to.sock (required)")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "the directory that all processes of the driver share (required)")
	flags.StringVar(&cfg.Control, "control", "", "the control socket, as unix:///path/to.sock, for simdriver ctl; none if empty")
	flags.StringVar(&cfg.Name, "name", DefaultName, "the name of the driver")
	flags.StringVar(&dialect, "health", string(health.V113), "how the health of volumes is told: none, legacy (VolumeCondition of CSI 1.3 to 1.12) or v1.13")
	if role == "node" {
		flags.StringVar(&cfg.NodeID, "node-id", "", "the ID of this node (required)")
		flags.StringToStringVar(&topology, "topology", nil, "where the node is, key=value,...; the controller needs --topology then")
		flags.BoolVar(&cfg.LocalController, "controller", false, "serve the Controller service too, for volumes of this node alone; needs --topology")
	} else {
		flags.BoolVar(&cfg.Topology, "topology", false, "volumes are accessible from segments: CreateVolume takes accessibility_requirements")
	}
	flags.Int64Var(&cfg.Capacity, "capacity", 0, "bytes of storage in each segment, for a node in its own, which GetCapacity tells; 0 is no limit, and no GetCapacity")
	flags.Int64Var(&cfg.MaximumVolumeSize, "max-volume-size", 0, "the size of the largest volume in bytes; 0 is no bound")
	return command
}

func checkServe(cfg *Config, dialect string) error {
	parsed, err := health.Parse(dialect)
	if err != nil {
		return fmt.Errorf("--health: %w", err)
	}
	cfg.Health = parsed
	if cfg.StateDir == "" {
		return errors.New("--state-dir is missing")
	}
	if _, err := server.ParseEndpoint(cfg.Endpoint); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	if cfg.Control != "" {
		if _, err := server.ParseEndpoint(cfg.Control); err != nil {
			return fmt.Errorf("--control: %w", err)
		}
		if cfg.Control == cfg.Endpoint {
			return errors.New("--endpoint and --control are the same")
		}
	}
	if !driverName.MatchString(cfg.Name) {
		return fmt.Errorf("--name %q is not allowed: letters, digits, dashes and dots, at most 63", cfg.Name)
	}
	return nil
}
