package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Unmount takes all CSI volumes from a pod: NodeUnpublishVolume, with the last
// pod NodeUnstageVolume, and only then the volume leaves
// node.status.volumesInUse, which is acknowledged when Unmount returns nil. It
// needs no API object of the pod, and may be called again after an error.
func (m *Manager) Unmount(ctx context.Context, uid types.UID) error {
	var errs []error
	for _, name := range m.namesOf(uid) {
		if err := m.unmountOne(ctx, name, uid); err != nil {
			errs = append(errs, err)
		}
	}
	// What is unmounted is reported even where another volume resists.
	if err := m.report(ctx); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveLocal removes the pod's own directories. CSI target paths are only
// removed where empty.
func (m *Manager) RemoveLocal(uid types.UID) error {
	dir := m.podVolumesDir(uid)
	for _, kind := range []string{"empty-dir", "api-objects"} {
		if err := os.RemoveAll(filepath.Join(dir, kind)); err != nil {
			return fmt.Errorf("removing volumes of pod %s: %w", uid, err)
		}
	}
	for _, pattern := range []string{"kubernetes.io~csi/*/mount", "kubernetes.io~csi/*", "kubernetes.io~csi", "."} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range paths {
			_ = os.Remove(path) // Not empty: not ours to remove.
		}
	}
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("volumes of pod %s are still mounted below %s", uid, dir)
	}
	return nil
}

func (m *Manager) namesOf(uid types.UID) []v1.UniqueVolumeName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []v1.UniqueVolumeName
	for name, e := range m.entries {
		if e.users[uid] {
			out = append(out, name)
		}
	}
	return out
}

func (m *Manager) unmountOne(ctx context.Context, name v1.UniqueVolumeName, uid types.UID) error {
	m.mu.Lock()
	e := m.entries[name]
	m.mu.Unlock()
	if e == nil {
		return nil
	}
	if err := e.lock(ctx); err != nil {
		return err
	}
	defer e.unlock()
	if err := m.unpublish(ctx, e, uid); err != nil {
		return fmt.Errorf("volume %s: %w", e.rec.PV, err)
	}
	if !m.lastUser(e, uid) {
		m.release(name, e, uid)
		return nil
	}
	if err := m.unstage(ctx, e); err != nil {
		return fmt.Errorf("volume %s: %w", e.rec.PV, err)
	}
	m.release(name, e, uid)
	return nil
}

func (m *Manager) unpublish(ctx context.Context, e *entry, uid types.UID) error {
	pub, ok := e.rec.Publications[uid]
	if !ok {
		return nil
	}
	driver, err := m.cfg.Drivers.Get(e.rec.Driver)
	if err != nil {
		return err
	}
	if err := driver.Unpublish(ctx, string(e.rec.Handle), pub.Path); err != nil {
		return err
	}
	return m.update(e, func(r *record) { delete(r.Publications, uid) })
}

// unstage undoes NodeStageVolume, also one that failed or was cut short: its
// record is there from before the call.
func (m *Manager) unstage(ctx context.Context, e *entry) error {
	if e.rec.StagingPath != "" && e.rec.Publications != nil {
		driver, err := m.cfg.Drivers.Get(e.rec.Driver)
		if err != nil {
			return err
		}
		if err := m.update(e, func(r *record) { r.Staged = false }); err != nil {
			return err
		}
		if err := driver.Unstage(ctx, string(e.rec.Handle), e.rec.StagingPath); err != nil {
			return err
		}
	}
	return m.forget(e.rec)
}

func (m *Manager) lastUser(e *entry, uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(e.users) == 1 && e.users[uid]
}

// release drops the user, and with the last one the entry. A pod that claimed
// the volume meanwhile keeps it, and stages anew.
func (m *Manager) release(name v1.UniqueVolumeName, e *entry, uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(e.users, uid)
	if len(e.users) == 0 && m.entries[name] == e {
		delete(m.entries, name)
	}
}
