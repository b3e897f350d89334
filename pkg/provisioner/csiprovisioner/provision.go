package csiprovisioner

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
)

// Provisioner makes and deletes the volumes of one CSI driver. See the package.
type Provisioner struct {
	cfg       Config
	migration migration

	mu      sync.Mutex
	intents map[types.UID]*intent
	later   func(*v1.PersistentVolumeClaim)
	// opened: all that the journal knew is in intents.
	opened bool
	// unreadable counts records of the journal that could not be read.
	unreadable atomic.Int64
}

// New returns a Provisioner. The error tells what is wrong with the config.
func New(cfg Config) (*Provisioner, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Provisioner{
		cfg: cfg, migration: newMigration(cfg.DriverName), intents: map[types.UID]*intent{},
		later: func(*v1.PersistentVolumeClaim) {},
	}, nil
}

// AdditionalNames are the in-tree provisioners whose volumes have moved to the
// driver.
func (p *Provisioner) AdditionalNames() []string { return p.migration.names() }

// SupportsBlock implements provisioner.BlockProvisioner: the driver itself refuses
// what it cannot make.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Share implements provisioner.Sharer.
func (p *Provisioner) Share(ctx context.Context, claim *v1.PersistentVolumeClaim) (mine bool, again time.Duration, err error) {
	return p.cfg.Share(ctx, claim)
}

// ShouldDelete implements provisioner.DeletionGuard.
func (p *Provisioner) ShouldDelete(_ context.Context, pv *v1.PersistentVolume) bool {
	return p.cfg.Mine(pv)
}

// Provision implements provisioner.Provisioner.
func (p *Provisioner) Provision(provisioner.VolumeOptions) (*v1.PersistentVolume, error) {
	return nil, errors.New("csiprovisioner: call ProvisionExt")
}

// ProvisionExt implements provisioner.StatefulProvisioner. A volume that was begun
// is gone on with by the request that it was begun with; the options count for a
// new one.
func (p *Provisioner) ProvisionExt(ctx context.Context, options provisioner.VolumeOptions) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	if in := p.begun(options.PVC.UID); in != nil {
		secrets, err := p.secret(ctx, in.Secret)
		switch {
		case errors.Is(err, errNoSecret) && options.Abandoned:
			// The driver may tell of the volume all the same, so that it can be
			// deleted; nobody is going to use it.
		case err != nil:
			return nil, provisioner.ProvisioningNoChange, err
		}
		return p.create(ctx, in, secrets)
	}
	in, err := p.plan(ctx, options)
	var foreign *source.Foreign
	if errors.As(err, &foreign) {
		p.cfg.Recorder.Event(options.PVC, v1.EventTypeNormal, provisioner.ReasonProvisioning, source.PopulatorMessage)
		return nil, provisioner.ProvisioningFinished, &provisioner.IgnoredError{Reason: foreign.Error()}
	}
	if err != nil {
		return nil, plannedState(err), err
	}
	// Read before anything is written down, so that a claim whose secret is
	// missing leaves nothing.
	secrets, err := p.secret(ctx, in.Secret)
	if err != nil {
		return nil, provisioner.ProvisioningNoChange, err
	}
	if err := p.start(ctx, in); err != nil {
		return nil, provisioner.ProvisioningNoChange, err
	}
	return p.create(ctx, in, secrets)
}

// start protects the source and writes the intent down.
func (p *Provisioner) start(ctx context.Context, in *intent) error {
	if in.Source != nil {
		if err := p.cfg.Protect(ctx, *in.Source, in.Claim.UID); err != nil {
			return err
		}
	}
	err := p.begin(ctx, in)
	if err != nil && in.Source != nil {
		p.cfg.Release(*in.Source, in.Claim.UID)
	}
	return err
}
