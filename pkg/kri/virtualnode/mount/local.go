package mount

import (
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// local gives the path of a volume that needs no driver; ok is false for one
// that does.
//
// Volumes that carry API objects (projected, secret, configMap, downwardAPI) are
// empty directories: admission adds a service account token to every pod, and
// no process here needs one.
func (m *Manager) local(uid types.UID, vol *v1.Volume) (path string, ok bool, err error) {
	src := vol.VolumeSource
	switch {
	case src.PersistentVolumeClaim != nil, src.Ephemeral != nil:
		return "", false, nil
	case src.HostPath != nil:
		path, err = hostPath(src.HostPath)
		return path, true, err
	case src.EmptyDir != nil:
		path, err = m.ownDir(uid, "empty-dir", vol.Name)
		return path, true, err
	case src.Projected != nil, src.Secret != nil, src.ConfigMap != nil, src.DownwardAPI != nil:
		path, err = m.ownDir(uid, "api-objects", vol.Name)
		return path, true, err
	}
	return "", true, fmt.Errorf("volume %s is of a kind that the virtual node does not support", vol.Name)
}

func (m *Manager) ownDir(uid types.UID, kind, name string) (string, error) {
	path := filepath.Join(m.podVolumesDir(uid), kind, name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return "", fmt.Errorf("making volume %s: %w", name, err)
	}
	return path, nil
}

func hostPath(src *v1.HostPathVolumeSource) (string, error) {
	kind := v1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	if !filepath.IsAbs(src.Path) {
		return "", fmt.Errorf("hostPath %q is not absolute", src.Path)
	}
	switch kind {
	case v1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(src.Path, 0o755); err != nil {
			return "", fmt.Errorf("making hostPath: %w", err)
		}
	case v1.HostPathDirectory:
		if info, err := os.Stat(src.Path); err != nil {
			return "", fmt.Errorf("hostPath: %w", err)
		} else if !info.IsDir() {
			return "", fmt.Errorf("hostPath %s is not a directory", src.Path)
		}
	}
	return src.Path, nil
}

func (m *Manager) podVolumesDir(uid types.UID) string {
	return filepath.Join(m.cfg.Root, "pods", string(uid), "volumes")
}
