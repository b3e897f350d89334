package csiprovisioner

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	// unreadable are records of the journal that could not be read, by claim.
	unreadable map[types.UID]unread
	// opened: all that the journal knew is in the two.
	opened bool
}

// New returns a Provisioner. The error tells what is wrong with the config.
func New(cfg Config) (*Provisioner, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &Provisioner{
		cfg: cfg, migration: newMigration(cfg.DriverName), intents: map[types.UID]*intent{},
		unreadable: map[types.UID]unread{}, later: func(*v1.PersistentVolumeClaim) {},
	}
	if err := p.register(cfg.Registry); err != nil {
		return nil, fmt.Errorf("registering metrics of the journal: %w", err)
	}
	return p, nil
}

// AdditionalNames are the in-tree provisioners whose volumes have moved to the
// driver.
func (p *Provisioner) AdditionalNames() []string { return p.migration.names() }

// SupportsBlock implements provisioner.BlockProvisioner: the driver itself refuses
// what it cannot make.
func (p *Provisioner) SupportsBlock(context.Context) bool { return true }

// Share implements provisioner.Sharer.
func (p *Provisioner) Share(ctx context.Context, claim *v1.PersistentVolumeClaim) (mine bool, again time.Duration, err error) {
	if !p.ofDriver(claim) {
		return false, 0, nil
	}
	return p.cfg.Share(ctx, claim)
}

// Owns implements provisioner.Sharer.
func (p *Provisioner) Owns(claim *v1.PersistentVolumeClaim) bool {
	return p.ofDriver(claim) && p.cfg.Owns(claim)
}

// ofDriver reports whether a claim is for the driver. One of the in-tree plugin is
// only once Kubernetes says that it has moved.
func (p *Provisioner) ofDriver(claim *v1.PersistentVolumeClaim) bool {
	return provisioner.StorageProvisioner(claim) == p.cfg.DriverName || claim.Annotations[provisioner.AnnotationMigratedTo] == p.cfg.DriverName
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
	in, err := p.begun(options.PVC)
	if err != nil {
		return nil, provisioner.ProvisioningNoChange, err
	}
	if in != nil {
		return p.goOn(ctx, in, options)
	}
	if options.Abandoned {
		// What was thought to be begun came to nothing before it was written down.
		return nil, provisioner.ProvisioningFinished, fmt.Errorf("no volume was begun for claim %s/%s, which has gone or has another one", options.PVC.Namespace, options.PVC.Name)
	}
	in, err = p.plan(ctx, options)
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
	return p.create(ctx, in, attempt{secrets: secrets, selectedNode: options.SelectedNode})
}

// goOn makes the request of an intent once more.
func (p *Provisioner) goOn(ctx context.Context, in *intent, options provisioner.VolumeOptions) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	secrets, missing := p.secret(ctx, in.Secret)
	// Without its secret the driver may tell of the volume all the same, so that it
	// can be deleted; nobody is going to use it.
	without := errors.Is(missing, errNoSecret) && options.Abandoned
	if missing != nil && !without {
		return nil, provisioner.ProvisioningNoChange, missing
	}
	pv, state, err := p.create(ctx, in, attempt{secrets: secrets, without: without, selectedNode: options.SelectedNode})
	if err != nil && without {
		err = fmt.Errorf("%w; called without secrets, since %w", err, missing)
	}
	return pv, state, err
}

// start protects the source and writes the intent down.
func (p *Provisioner) start(ctx context.Context, in *intent) error {
	if in.Source != nil {
		err := p.cfg.Protect(ctx, *in.Source, in.Claim.UID)
		var unprotected *source.Unprotected
		switch {
		case errors.As(err, &unprotected):
			p.cfg.Recorder.Event(in.claim(), v1.EventTypeWarning, provisioner.ReasonSourceUnprotected, err.Error())
		case err != nil:
			return err
		}
	}
	err := p.begin(ctx, in)
	if err != nil && in.Source != nil {
		p.cfg.Release(*in.Source, in.Claim.UID)
	}
	return err
}
