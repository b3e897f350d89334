package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ProvisionerOptions configure the provisioner. Of those that override a plain
// flag zero means "as the plain flag says". Names and defaults are
// external-provisioner's.
type ProvisionerOptions struct {
	Timeout            time.Duration
	WorkerThreads      int
	RetryIntervalStart time.Duration
	RetryIntervalMax   time.Duration
	DefaultFSType      string

	StrictTopology              bool
	ImmediateTopology           bool
	ExtraCreateMetadata         bool
	ControllerPublishReadOnly   bool
	PreventVolumeModeConversion bool
	VolumeNamePrefix            string
	VolumeNameUUIDLength        int
	CloningProtectionThreads    int
	SnapshotOrphanSweepInterval time.Duration
}

func defaultProvisionerOptions() ProvisionerOptions {
	return ProvisionerOptions{
		ImmediateTopology: true, PreventVolumeModeConversion: true, VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1,
		CloningProtectionThreads: 1, SnapshotOrphanSweepInterval: 5 * time.Minute,
	}
}

func (o *Options) addProvisionerFlags(fs *pflag.FlagSet) {
	p := &o.Provisioner
	fs.DurationVar(&p.Timeout, "provisioner-timeout", p.Timeout, "--timeout for the provisioner alone; 0: the same")
	fs.IntVar(&p.WorkerThreads, "provisioner-worker-threads", p.WorkerThreads, fmt.Sprintf("--worker-threads for the provisioner alone; 0: the same, or %d if that is not given either", defaultProvisionerThreads))
	fs.DurationVar(&p.RetryIntervalStart, "provisioner-retry-interval-start", p.RetryIntervalStart, "--retry-interval-start for the provisioner alone; 0: the same")
	fs.DurationVar(&p.RetryIntervalMax, "provisioner-retry-interval-max", p.RetryIntervalMax, "--retry-interval-max for the provisioner alone; 0: the same")
	fs.StringVar(&p.DefaultFSType, "provisioner-default-fstype", p.DefaultFSType, "--default-fstype for the provisioner alone; empty: the same")
	fs.BoolVar(&p.StrictTopology, "strict-topology", p.StrictTopology, "a volume that waited for a node is made where that node is, and nowhere else")
	fs.BoolVar(&p.ImmediateTopology, "immediate-topology", p.ImmediateTopology, "a volume that waits for no node may be made anywhere in the cluster; false: the driver is told nothing unless the class has allowedTopologies")
	fs.BoolVar(&p.ExtraCreateMetadata, "extra-create-metadata", p.ExtraCreateMetadata, "tell the driver the names of claim and PersistentVolume, as parameters csi.storage.k8s.io/pvc/name, pvc/namespace and pv/name")
	fs.BoolVar(&p.ControllerPublishReadOnly, "controller-publish-readonly", p.ControllerPublishReadOnly, "mark PersistentVolumes read-only whose only access mode is ReadOnlyMany")
	fs.BoolVar(&p.PreventVolumeModeConversion, "prevent-volume-mode-conversion", p.PreventVolumeModeConversion, "a claim must have the volume mode that its snapshot was taken with, unless the VolumeSnapshotContent allows another")
	fs.StringVar(&p.VolumeNamePrefix, "volume-name-prefix", p.VolumeNamePrefix, "what the names of volumes begin with; never change it while claims are pending")
	fs.IntVar(&p.VolumeNameUUIDLength, "volume-name-uuid-length", p.VolumeNameUUIDLength, "digits of the claim's UID in the name of its volume, 8 to 32; -1: the whole, with dashes")
	fs.IntVar(&p.CloningProtectionThreads, "cloning-protection-threads", p.CloningProtectionThreads, "sources of clones and snapshots whose finalizer is looked after at once")
	fs.DurationVar(&p.SnapshotOrphanSweepInterval, "snapshot-orphan-sweep-interval", p.SnapshotOrphanSweepInterval, "time between two looks for finalizers on VolumeSnapshots that nobody needs; 0: never")
}

// validateProvisioner checks what is the provisioner's; 0 is unset.
func (o *Options) validateProvisioner() []error {
	var errs []error
	p := o.Provisioner
	for flag, d := range map[string]time.Duration{
		"provisioner-timeout": p.Timeout, "provisioner-retry-interval-start": p.RetryIntervalStart, "provisioner-retry-interval-max": p.RetryIntervalMax,
		"snapshot-orphan-sweep-interval": p.SnapshotOrphanSweepInterval,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("--%s=%v: must not be negative", flag, d))
		}
	}
	if p.WorkerThreads < 0 || p.CloningProtectionThreads < 1 {
		errs = append(errs, errors.New("--provisioner-worker-threads must not be negative, --cloning-protection-threads must be positive"))
	}
	if pick(p.RetryIntervalMax, o.RetryIntervalMax) < pick(p.RetryIntervalStart, o.RetryIntervalStart) && o.RetryIntervalMax >= o.RetryIntervalStart {
		errs = append(errs, errors.New("--provisioner-retry-interval-max: must not be shorter than --provisioner-retry-interval-start, with the plain flags for what is not given"))
	}
	if problems := validation.IsDNS1123Subdomain(p.VolumeNamePrefix + "-0"); len(problems) > 0 {
		errs = append(errs, fmt.Errorf("--volume-name-prefix=%s: cannot begin the name of a PersistentVolume: %s", p.VolumeNamePrefix, problems[0]))
	}
	if n := p.VolumeNameUUIDLength; n != -1 && (n < 8 || n > 32) {
		errs = append(errs, fmt.Errorf("--volume-name-uuid-length=%d: use 8 to 32, or -1 for the whole UID: fewer digits give two claims one volume", n))
	}
	return errs
}
