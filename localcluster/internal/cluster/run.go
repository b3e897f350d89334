package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// RunOptions is what "localcluster run" was asked for.
type RunOptions struct {
	// Component is kube-controller-manager or kube-scheduler.
	Component    string
	Dir          string
	FeatureGates string
	// Args are further arguments of the component.
	Args []string
}

// isClient reports whether a component works through the API alone, so that the
// others run without it.
func isClient(component string) bool { return component == ControllerManager || component == Scheduler }

// ParseRun reads the command line of "localcluster run"; help goes to out.
func ParseRun(args []string, out io.Writer) (RunOptions, error) {
	var o RunOptions
	set := newFlagSet("run", out)
	set.StringVar(&o.Dir, "dir", "", "directory of the cluster, which was started --without the component (required)")
	set.StringVar(&o.FeatureGates, "feature-gates", "", "feature gates, as for localcluster up")
	set.StringArrayVar(&o.Args, "arg", nil, "further argument for the component, as --flag=value; may be repeated")
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		o.Component, args = args[0], args[1:]
	}
	if err := parse(set, args); err != nil {
		return o, err
	}
	if !isClient(o.Component) {
		return o, Usagef("%q cannot be run by itself: write localcluster run %s --dir DIR, or %s", o.Component, ControllerManager, Scheduler)
	}
	if o.Dir == "" {
		return o, Usagef("--dir is missing: name the directory that localcluster up was given")
	}
	for _, arg := range o.Args {
		if !strings.HasPrefix(arg, "--") {
			return o, Usagef("--arg %q is no flag: write --arg=--flag=value", arg)
		}
	}
	var err error
	if o.FeatureGates, err = featureGates(o.FeatureGates); err != nil {
		return o, err
	}
	return o, absolute(&o.Dir)
}

// CommandLine is the component's, as "localcluster up" would have given it, with
// a port that is held until release.
func CommandLine(o RunOptions) (line []string, release func(), err error) {
	l := layout(o.Dir)
	if _, err := os.Stat(l.kubeconfig(o.Component)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s holds no cluster: start one with localcluster up --without %s --dir %s", o.Dir, o.Component, o.Dir)
	} else if err != nil {
		return nil, nil, fmt.Errorf("reading the credentials of %s: %w", o.Component, err)
	}
	r, err := reserve(0)
	if err != nil {
		return nil, nil, fmt.Errorf("choosing the port of %s: %w", o.Component, err)
	}
	up := Options{FeatureGates: o.FeatureGates, Args: map[string][]string{o.Component: o.Args}}
	return append([]string{o.Component}, arguments(o.Component, l, up, ports{o.Component: r.port})...), r.release, nil
}
