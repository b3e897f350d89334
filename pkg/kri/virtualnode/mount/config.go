// Package mount gives pods their volumes: local directories, and CSI volumes
// through the driver's node service. It keeps the kubelet's half of the
// agreement with kube-controller-manager: a volume is reported in
// node.status.volumesInUse before it is looked for in volumesAttached, and until
// after it has been unstaged.
package mount

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
)

// NodeReporter writes the status of the node.
type NodeReporter interface {
	// ReportNode returns nil once the API has acknowledged a status that holds
	// InUse as it was when ReportNode was called, or newer.
	ReportNode(ctx context.Context) error
}

// NodeWatcher sees the node as the API has it.
type NodeWatcher interface {
	// Node returns the latest Node seen (nil before the first) and a channel
	// that is closed when a newer one is.
	Node() (*v1.Node, <-chan struct{})
}

// Config configures a Manager.
type Config struct {
	NodeName string
	// Root is the agent's directory, absolute.
	Root   string
	Client kubernetes.Interface
	// Drivers are the CSI drivers that have answered.
	Drivers  *csinode.Registry
	Reporter NodeReporter
	Watcher  NodeWatcher
	Clock    clock.WithTicker
	// AttachTimeout is how long one attempt waits for a volume to be attached.
	AttachTimeout time.Duration
	// APITimeout is the deadline of one request.
	APITimeout time.Duration
}

func (c *Config) validate() error {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	switch {
	case c.NodeName == "":
		return errors.New("no node name")
	case !filepath.IsAbs(c.Root):
		return fmt.Errorf("root directory %q is not absolute", c.Root)
	case c.Client == nil || c.Drivers == nil || c.Reporter == nil || c.Watcher == nil:
		return errors.New("client, drivers, reporter and watcher are all needed")
	case c.AttachTimeout <= 0 || c.APITimeout <= 0:
		return errors.New("timeouts must be positive")
	}
	return nil
}
