package virtualnode

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// Config configures an Agent. Zero durations and quantities take the defaults
// given with them.
type Config struct {
	// Name of the node. The client must be system:node:<Name>.
	Name string
	// RootDir holds everything that has to outlive the process, absolute.
	RootDir string
	Client  kubernetes.Interface
	// CSINodeSockets are the endpoints of the drivers' node services.
	CSINodeSockets []string
	// Faults are switched over the control socket; nil for none.
	Faults *Faults
	// Recorder takes events about pods; nil for none.
	Recorder record.EventRecorder
	Clock    clock.WithTicker

	// BootID is node.status.nodeInfo.bootID. Without it one is made up for every
	// boot; a restart of the agent that finds processes or mounts of its
	// predecessor is not a boot.
	BootID string
	Zone   string
	Labels map[string]string
	// CPU, Memory and Pods are the node's capacity (4, 8Gi, 110).
	CPU, Memory resource.Quantity
	Pods        int64

	LeaseDuration        time.Duration // 40s
	LeaseRenewInterval   time.Duration // 10s
	PingTimeout          time.Duration // 5s
	NodeStatusInterval   time.Duration // 5m; changes are written at once
	VolumeHealthInterval time.Duration // 1m
	HousekeepingInterval time.Duration // 5s
	RestartBackoff       time.Duration // 10s, doubling
	RestartBackoffMax    time.Duration // 300s
	CSITimeout           time.Duration // 2m
	AttachTimeout        time.Duration // 2m
	APITimeout           time.Duration // 10s
	// ShutdownGrace bounds the grace of containers when the agent ends (30s).
	ShutdownGrace time.Duration
	// KeepContainers leaves containers and mounts alone when the agent ends.
	KeepContainers bool
}

func (c *Config) complete() error {
	if errs := validation.IsDNS1123Subdomain(c.Name); len(errs) > 0 {
		return fmt.Errorf("node name %q: %s", c.Name, errs[0])
	}
	if !filepath.IsAbs(c.RootDir) {
		return fmt.Errorf("root directory %q is not absolute", c.RootDir)
	}
	if c.Client == nil {
		return errors.New("no client")
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Faults == nil {
		c.Faults = NewFaults()
	}
	if c.Recorder == nil {
		c.Recorder = &record.FakeRecorder{} // Without a channel it drops events.
	}
	if c.CPU.IsZero() {
		c.CPU = resource.MustParse("4")
	}
	if c.Memory.IsZero() {
		c.Memory = resource.MustParse("8Gi")
	}
	if c.Pods == 0 {
		c.Pods = 110
	}
	return c.completeDurations()
}

func (c *Config) completeDurations() error {
	for _, d := range []struct {
		name     string
		value    *time.Duration
		fallback time.Duration
	}{
		{"lease duration", &c.LeaseDuration, 40 * time.Second},
		{"lease renew interval", &c.LeaseRenewInterval, 10 * time.Second},
		{"ping timeout", &c.PingTimeout, 5 * time.Second},
		{"node status interval", &c.NodeStatusInterval, 5 * time.Minute},
		{"volume health interval", &c.VolumeHealthInterval, time.Minute},
		{"housekeeping interval", &c.HousekeepingInterval, 5 * time.Second},
		{"restart backoff", &c.RestartBackoff, 10 * time.Second},
		{"largest restart backoff", &c.RestartBackoffMax, 300 * time.Second},
		{"deadline of CSI calls", &c.CSITimeout, 2 * time.Minute},
		{"attach timeout", &c.AttachTimeout, 2 * time.Minute},
		{"deadline of API requests", &c.APITimeout, 10 * time.Second},
		{"shutdown grace", &c.ShutdownGrace, 30 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
		if *d.value < 0 {
			return fmt.Errorf("%s %v is negative", d.name, *d.value)
		}
	}
	if c.LeaseDuration < time.Second || c.LeaseRenewInterval >= c.LeaseDuration {
		return fmt.Errorf("lease renew interval %v must be shorter than the lease duration %v, and that at least 1s",
			c.LeaseRenewInterval, c.LeaseDuration)
	}
	return nil
}
