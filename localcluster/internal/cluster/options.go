// Package cluster brings a control plane up on the loopback interface and writes
// the credentials for it. It starts the components by running its own binary
// again, so it imports none of them.
package cluster

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// The components, by the names of their commands.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

// Components lists the components in the order in which they start.
var Components = []string{Etcd, APIServer, ControllerManager, Scheduler}

// UsageError says what is wrong with the command line and what to do about it.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// Usagef formats a UsageError.
func Usagef(format string, args ...any) error {
	return UsageError(fmt.Sprintf(format, args...))
}

// Options is what "localcluster up" was asked for.
type Options struct {
	Dir          string
	Kubeconfig   string
	FeatureGates string
	// Args holds further arguments by component.
	Args map[string][]string
	// Without lists the components that are left to somebody else, see Run.
	Without  []string
	AuditLog string
	Fsync    bool
	Port     int
	EtcdPort int
}

// ParseUp reads the command line of "localcluster up"; help goes to out.
func ParseUp(args []string, out io.Writer) (Options, error) {
	var o Options
	var extra []string
	set := newFlagSet("up", out)
	set.StringVar(&o.Dir, "dir", "", "directory for data, certificates and logs; made when missing, continued when it already holds a cluster (required)")
	set.StringVar(&o.Kubeconfig, "kubeconfig", "", "file to write the administrator's kubeconfig to, once the cluster is ready (default DIR/"+adminKubeconfig+")")
	set.StringVar(&o.FeatureGates, "feature-gates", "", "feature gates of the Kubernetes components, as NAME=true,... ("+defaultGate+"=true unless named here)")
	set.StringArrayVar(&extra, "arg", nil, "further argument for a component, as COMPONENT=--flag=value; may be repeated")
	set.StringArrayVar(&o.Without, "without", nil, "component not to start, "+ControllerManager+" or "+Scheduler+": start and stop it with localcluster run; may be repeated")
	set.StringVar(&o.AuditLog, "audit-log", "", "file to write every request to, at level Metadata")
	set.BoolVar(&o.Fsync, "fsync", false, "let etcd flush its writes to disk")
	set.IntVar(&o.Port, "port", 0, "port of kube-apiserver (default: a free one)")
	set.IntVar(&o.EtcdPort, "etcd-port", 0, "port of etcd (default: a free one)")
	if err := parse(set, args); err != nil {
		return o, err
	}
	return o, o.complete(extra)
}

// complete checks the options against each other and makes the paths absolute.
func (o *Options) complete(extra []string) error {
	if o.Dir == "" {
		return Usagef("--dir is missing: name a directory for data, certificates and logs")
	}
	for name, port := range map[string]int{"--port": o.Port, "--etcd-port": o.EtcdPort} {
		if port < 0 || port > 65535 {
			return Usagef("%s=%d is no port: use 1 to 65535, or leave it out for a free one", name, port)
		}
	}
	if o.Port != 0 && o.Port == o.EtcdPort {
		return Usagef("--port and --etcd-port are both %d: use two ports", o.Port)
	}
	for _, component := range o.Without {
		if !isClient(component) {
			return Usagef("--without=%s: name %s or %s, since nothing works without the others", component, ControllerManager, Scheduler)
		}
	}
	var err error
	if o.Args, err = componentArgs(extra); err != nil {
		return err
	}
	if o.FeatureGates, err = featureGates(o.FeatureGates); err != nil {
		return err
	}
	return absolute(&o.Dir, &o.Kubeconfig, &o.AuditLog)
}

// componentArgs sorts values of --arg by component.
func componentArgs(values []string) (map[string][]string, error) {
	args := map[string][]string{}
	for _, value := range values {
		component, arg, _ := strings.Cut(value, "=")
		if !slices.Contains(Components, component) {
			return nil, Usagef("--arg %q names no component: write COMPONENT=--flag=value, where COMPONENT is one of %s",
				value, strings.Join(Components, ", "))
		}
		if !strings.HasPrefix(arg, "--") {
			return nil, Usagef("--arg %q holds no flag: write %s=--flag=value", value, component)
		}
		args[component] = append(args[component], arg)
	}
	return args, nil
}

func newFlagSet(command string, out io.Writer) *pflag.FlagSet {
	set := pflag.NewFlagSet(command, pflag.ContinueOnError)
	set.SetOutput(out)
	set.Usage = func() {
		fmt.Fprintf(out, "Usage of localcluster %s:\n%s", command, set.FlagUsages())
	}
	return set
}

func parse(set *pflag.FlagSet, args []string) error {
	switch err := set.Parse(args); {
	case err == pflag.ErrHelp:
		return err
	case err != nil:
		return Usagef("%v: localcluster %s --help lists the flags", err, set.Name())
	}
	if set.NArg() > 0 {
		return Usagef("%q is one argument too many: localcluster %s takes flags only", set.Arg(0), set.Name())
	}
	return nil
}

func absolute(paths ...*string) error {
	for _, path := range paths {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("making %s absolute: %w", *path, err)
		}
		*path = abs
	}
	return nil
}
