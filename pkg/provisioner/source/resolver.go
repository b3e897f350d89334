package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
)

// Config configures a Resolver.
type Config struct {
	// Dynamic reads claims, PersistentVolumes, VolumeSnapshots and their contents.
	// It need not be able to read the latter two: then claims with a snapshot fail.
	Dynamic dynamic.Interface
	// AllowVolumeModeConversion lets a claim have another volumeMode than the
	// volume that its snapshot was taken of, whatever the content says. False is
	// --prevent-volume-mode-conversion, the default.
	AllowVolumeModeConversion bool
	// CanSnapshot and CanClone say whether the driver has the capability
	// CREATE_DELETE_SNAPSHOT or CLONE_VOLUME. They are asked for each claim, since
	// a driver may come back with others.
	CanSnapshot, CanClone func() bool
	// Timeout bounds one request to the API server; DefaultTimeout if zero.
	Timeout time.Duration
}

// Source is what a new volume begins as a copy of.
type Source struct {
	// Content is for the CreateVolumeRequest.
	Content *csi.VolumeContentSource
	// Ref is what Protect protects.
	Ref Ref
}

// Resolver turns the data source of a claim into what CreateVolume wants.
type Resolver struct {
	cfg  Config
	live live
}

// New returns a Resolver.
func New(cfg Config) (*Resolver, error) {
	var errs []error
	if cfg.Dynamic == nil {
		errs = append(errs, errors.New("no Dynamic is given"))
	}
	if cfg.CanSnapshot == nil || cfg.CanClone == nil {
		errs = append(errs, errors.New("no CanSnapshot or no CanClone is given"))
	}
	if cfg.Timeout < 0 {
		errs = append(errs, fmt.Errorf("the Timeout is %v, must not be negative", cfg.Timeout))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("source config: %w", err)
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	return &Resolver{cfg: cfg, live: live{cfg.Dynamic, cfg.Timeout}}, nil
}

// Resolve returns the source of a claim whose class is of the CSI driver
// provisioner, or nil if the claim has none. All that it goes by, but for the
// claim itself, is read live.
//
// The error is a *Foreign if the claim is an external populator's, a *Refused if
// only a change of the objects or of the driver helps, and another one if the
// source may yet become what is needed, or could not be read.
//
// What was found holds at the time of reading; Protect makes it last.
func (r *Resolver) Resolve(ctx context.Context, claim *v1.PersistentVolumeClaim, provisioner string) (*Source, error) {
	k, found, err := keyOf(claim)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return nil, nil
	case k.kind == Snapshot:
		return r.resolveSnapshot(ctx, claim, k, provisioner)
	default:
		return r.resolveClone(ctx, claim, k, provisioner)
	}
}

func (r *Resolver) resolveSnapshot(ctx context.Context, claim *v1.PersistentVolumeClaim, k key, provisioner string) (*Source, error) {
	if !r.cfg.CanSnapshot() {
		return nil, cannot(provisioner, k, "CREATE_DELETE_SNAPSHOT")
	}
	snap, err := r.live.snapshot(ctx, k)
	if err != nil {
		return nil, err
	}
	checks := snapshotChecks{provisioner: provisioner, keepMode: !r.cfg.AllowVolumeModeConversion}
	name, err := checks.bound(snap)
	if err != nil {
		return nil, err
	}
	content, err := r.live.content(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("for %s: %w", k, err)
	}
	handle, err := checks.handle(claim, snap, content)
	if err != nil {
		return nil, err
	}
	return &Source{
		Ref: k.ref(snap.UID),
		Content: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: handle},
		}},
	}, nil
}

func (r *Resolver) resolveClone(ctx context.Context, claim *v1.PersistentVolumeClaim, k key, provisioner string) (*Source, error) {
	if !r.cfg.CanClone() {
		return nil, cannot(provisioner, k, "CLONE_VOLUME")
	}
	if k.name == claim.Name {
		return nil, &Refused{What: "the claim names itself as its data source", Do: "make it again with another one, or with none"}
	}
	src, err := typed[v1.PersistentVolumeClaim](ctx, r.live, claimResource, k.namespace, k.name, k.String())
	if err != nil {
		return nil, err
	}
	if err := checkSourceClaim(claim, src); err != nil {
		return nil, err
	}
	pv, err := typed[v1.PersistentVolume](ctx, r.live, volumeResource, "", src.Spec.VolumeName, "PersistentVolume "+src.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("for %s: %w", k, err)
	}
	handle, err := checkSourceVolume(src, pv, provisioner)
	if err != nil {
		return nil, err
	}
	return &Source{
		Ref: k.ref(src.UID),
		Content: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: handle},
		}},
	}, nil
}

func cannot(driver string, k key, capability string) error {
	return &Refused{
		What: fmt.Sprintf("the claim is to be made of %s, and the CSI driver %s cannot: it has no capability %s", k, driver, capability),
		Do:   "make the claim again without a data source, or with a StorageClass of another driver",
	}
}
