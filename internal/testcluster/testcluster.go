// Package testcluster runs bin/localcluster, a real control plane on the
// loopback interface, for tests and for the demonstration.
package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ha-sidecar/ha-sidecar/internal/process"
)

const (
	// startBound is above localcluster's own, whose message is the better one.
	startBound = 4 * time.Minute
	// stopBound is above the sum of the grace periods that localcluster gives.
	stopBound = 30 * time.Second
	readyText = "localcluster is ready"
)

// Config says what control plane to run. Its zero value is good.
type Config struct {
	// Binary is localcluster; bin/localcluster of this repository by default.
	Binary string
	// Dir holds data, certificates and logs. By default it is a temporary one,
	// which Stop removes.
	Dir string
	// FeatureGates of the Kubernetes components, as NAME=true,...
	FeatureGates string
	// Args are further arguments, as COMPONENT=--flag=value.
	Args []string
	// Without are components that are left out: see RunComponent.
	Without []string
	// AuditLog is a file to write every request to.
	AuditLog string
	// Log receives what localcluster prints.
	Log io.Writer
}

// Cluster is a control plane that runs.
type Cluster struct {
	binary     string
	dir        string
	ownDir     bool
	kubeconfig string
	process    *process.Process
	config     *rest.Config
	client     kubernetes.Interface
}

// Start runs a control plane and returns when it is ready. The context bounds
// the start only; Stop ends the cluster.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Cluster{binary: cfg.Binary, dir: cfg.Dir}
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "localcluster-")
		if err != nil {
			return nil, fmt.Errorf("making a directory for the control plane: %w", err)
		}
		c.dir, c.ownDir = dir, true
	}
	if err := c.start(ctx, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("starting a control plane in %s: %w", c.dir, err), c.Stop())
	}
	return c, nil
}

// validate completes the configuration and says what is wrong with it.
func (cfg *Config) validate() error {
	if cfg.Binary == "" {
		binary, err := findBinary()
		if err != nil {
			return err
		}
		cfg.Binary = binary
	}
	info, err := os.Stat(cfg.Binary)
	if err != nil {
		return fmt.Errorf("looking for localcluster: %w; run: make build", err)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is no program; run: make build", cfg.Binary)
	}
	for _, arg := range cfg.Args {
		if _, flag, found := strings.Cut(arg, "="); !found || !strings.HasPrefix(flag, "--") {
			return fmt.Errorf("argument %q: write COMPONENT=--flag=value", arg)
		}
	}
	for _, path := range []*string{&cfg.Binary, &cfg.Dir, &cfg.AuditLog} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return fmt.Errorf("making a path absolute: %w", err)
		}
	}
	return nil
}

// findBinary walks up from the working directory, a package's in a test, to the
// go.mod of the main module.
func findBinary() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("looking for localcluster: %w", err)
	}
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module github.com/ha-sidecar/ha-sidecar\n")) {
			return filepath.Join(dir, "bin", "localcluster"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("looking for localcluster: the working directory is outside the repository; set Config.Binary")
		}
		dir = parent
	}
}

func (c *Cluster) start(ctx context.Context, cfg Config) error {
	c.kubeconfig = filepath.Join(c.dir, "admin.kubeconfig")
	args := []string{"up", "--dir", c.dir}
	if cfg.FeatureGates != "" {
		args = append(args, "--feature-gates", cfg.FeatureGates)
	}
	if cfg.AuditLog != "" {
		args = append(args, "--audit-log", cfg.AuditLog)
	}
	for _, arg := range cfg.Args {
		args = append(args, "--arg", arg)
	}
	for _, component := range cfg.Without {
		args = append(args, "--without", component)
	}
	p, err := process.Start(process.Config{Path: c.binary, Args: args, Log: cfg.Log, ReadyText: readyText})
	if err != nil {
		return err
	}
	c.process = p
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	select {
	case <-p.Ready():
	case <-p.Done():
		return p.Err()
	case <-ctx.Done():
		return fmt.Errorf("waiting until it is ready: %w; it has said: %s", context.Cause(ctx), p.Tail())
	}
	return c.connect()
}

// connect makes the administrator's client. Tests write in bursts, which the
// server's priority and fairness bounds better than a limit in the client.
func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making the administrator's client: %w", err)
	}
	c.config, c.client = config, client
	return nil
}

// RunComponent runs a component that the control plane was started without,
// with further arguments as --flag=value. The caller ends it, before Stop, and
// may run it again.
func (c *Cluster) RunComponent(component string, log io.Writer, arguments ...string) (*process.Process, error) {
	args := []string{"run", component, "--dir", c.dir}
	for _, arg := range arguments {
		args = append(args, "--arg", arg)
	}
	return process.Start(process.Config{Path: c.binary, Args: args, Log: log})
}

// Stop ends the control plane, and removes its directory if Start made it. It
// may be called again.
func (c *Cluster) Stop() error {
	var errs []error
	if c.process != nil {
		errs = append(errs, c.process.Stop(stopBound))
	}
	if c.ownDir {
		if err := os.RemoveAll(c.dir); err != nil {
			errs = append(errs, fmt.Errorf("removing the control plane's directory: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Done is closed when the control plane has ended, by Stop or by itself.
func (c *Cluster) Done() <-chan struct{} { return c.process.Done() }

// Err says why the control plane ended by itself: nil while it runs and after
// Stop.
func (c *Cluster) Err() error { return c.process.Err() }

// Dir holds the control plane's data, certificates and logs.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.kubeconfig }

// RESTConfig is the administrator's, a copy to change at will.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Client is the administrator's.
func (c *Cluster) Client() kubernetes.Interface { return c.client }
