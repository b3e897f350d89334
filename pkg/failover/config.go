package failover

import (
	"errors"
	"fmt"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Verdicts is what is believed of the driver's volumes.
type Verdicts interface {
	// Verdicts returns a copy that the caller may keep.
	Verdicts() []volume.Verdict
	// Changed delivers after something has changed since the last look.
	Changed() <-chan struct{}
}

// Config is what New needs.
type Config struct {
	Policy
	Verdicts Verdicts
	// Informers is started by the caller after New. PersistentVolumes, claims,
	// pods, VolumeAttachments, nodes, CSINodes, CSIDrivers and namespaces are
	// watched.
	Informers informers.SharedInformerFactory
	// Failing receives the names of PersistentVolumes in ModeEnforce. It is
	// never closed, and a slow reader stalls nothing.
	Failing chan<- string
	// Recorder may be nil: no events.
	Recorder record.EventRecorder
	// Registry may be nil: no metrics.
	Registry metrics.KubeRegistry
	// Clock may be nil: the real one.
	Clock clock.Clock
}

func (c *Config) validate() error {
	errs := []error{c.Validate()}
	if c.Verdicts == nil {
		errs = append(errs, errors.New("no source of verdicts: the health controller must run in this process (--controllers)"))
	}
	if c.Informers == nil {
		errs = append(errs, errors.New("no informers"))
	}
	if c.Mode == ModeEnforce && c.Failing == nil {
		errs = append(errs, fmt.Errorf("--failover-mode=%s: no receiver of failing volumes", c.Mode))
	}
	return errors.Join(errs...)
}
