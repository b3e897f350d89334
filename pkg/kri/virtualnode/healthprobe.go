package virtualnode

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/mount"
)

// Health calls have a short deadline, since one that hangs tells nothing, and
// run side by side, since one that hangs must not hide the others.
const (
	healthDeadline = 10 * time.Second
	healthParallel = 8
)

// healthProber asks the drivers about the volumes in use and about their
// storage.
type healthProber struct {
	cfg     *Config
	drivers *csinode.Registry
	mounts  *mount.Manager
	store   *healthStore
	changed func(types.UID)

	// storage is what was written to the CSINode, by driver; noStorage is set
	// where the API takes no such status. Only used in Run.
	storage   map[string][]storagev1.StorageHealthCondition
	noStorage bool
}

// Run probes every interval until ctx ends.
func (p *healthProber) Run(ctx context.Context) error {
	p.storage = map[string][]storagev1.StorageHealthCondition{}
	ticker := p.cfg.Clock.NewTicker(p.cfg.VolumeHealthInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		p.probeVolumes(ctx)
		for _, driver := range p.drivers.All() {
			p.probeStorage(ctx, driver)
		}
	}
}

func (p *healthProber) probeVolumes(ctx context.Context) {
	var group errgroup.Group
	group.SetLimit(healthParallel)
	for _, m := range p.mounts.Mounted() {
		group.Go(func() error { p.probeVolume(ctx, m); return nil })
	}
	_ = group.Wait() // The probes return no error.
}

// probeVolume leaves what was known before when the call fails.
func (p *healthProber) probeVolume(ctx context.Context, m mount.Mounted) {
	driver, err := p.drivers.Get(m.Driver)
	if err != nil || !driver.Has(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, healthDeadline)
	defer cancel()
	conditions, err := driver.VolumeHealth(ctx, m.Handle, m.Path, m.StagingPath)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Volume health not known", "driver", m.Driver, "pod", m.Pod, "volume", m.Name, "err", err)
		return
	}
	if p.store.set(m.Pod, m.Name, conditions) {
		klog.FromContext(ctx).Info("Volume health changed", "pod", m.Pod, "volume", m.Name, "conditions", conditions)
		p.changed(m.Pod)
	}
}

func (p *healthProber) probeStorage(ctx context.Context, driver csinode.Driver) {
	if p.noStorage || !driver.Has(csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH) {
		return
	}
	callCtx, cancel := context.WithTimeout(ctx, healthDeadline)
	defer cancel()
	conditions, err := driver.StorageHealth(callCtx)
	if err != nil {
		klog.FromContext(ctx).V(4).Info("Storage health not known", "driver", driver.Name, "err", err)
		return
	}
	old, written := p.storage[driver.Name]
	next := keepTransitions(old, conditions, metav1.NewTime(p.cfg.Clock.Now()))
	if sameStorage(old, next) && (written || len(next) == 0) {
		return
	}
	switch err := p.writeStorage(ctx, driver.Name, next); {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		p.noStorage = true
		klog.FromContext(ctx).Info("Storage health is not reported: the API takes no CSINode status", "err", err)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Writing storage health failed", "driver", driver.Name)
	default:
		p.storage[driver.Name] = next
	}
}

func (p *healthProber) writeStorage(ctx context.Context, driver string, conditions []storagev1.StorageHealthCondition) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.APITimeout)
	defer cancel()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"storageHealth": []map[string]any{{"name": driver, "healthConditions": conditions}},
	}})
	if err != nil {
		return fmt.Errorf("encoding storage health: %w", err)
	}
	_, err = p.cfg.Client.StorageV1().CSINodes().Patch(ctx, p.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// keepTransitions gives every condition the time since which it holds.
func keepTransitions(old, next []storagev1.StorageHealthCondition, now metav1.Time) []storagev1.StorageHealthCondition {
	out := make([]storagev1.StorageHealthCondition, 0, len(next))
	for _, c := range next {
		c.LastTransitionTime = now
		if i := slices.IndexFunc(old, func(o storagev1.StorageHealthCondition) bool { return sameStorageCondition(o, c) }); i >= 0 {
			c.LastTransitionTime = old[i].LastTransitionTime
		}
		out = append(out, c)
	}
	return out
}

func sameStorage(a, b []storagev1.StorageHealthCondition) bool {
	return slices.EqualFunc(a, b, sameStorageCondition)
}

func sameStorageCondition(a, b storagev1.StorageHealthCondition) bool {
	sameMode := a.VolumeMode == nil && b.VolumeMode == nil || a.VolumeMode != nil && b.VolumeMode != nil && *a.VolumeMode == *b.VolumeMode
	return a.Status == b.Status && a.Reason == b.Reason && sameMode
}
