package virtualnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// prepareWorkDir makes the container's working directory: below root, every
// mountPath is a symbolic link to the volume. It returns the directory to start
// in.
func prepareWorkDir(root string, c *v1.Container, volumes map[string]string) (string, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("making the working directory: %w", err)
	}
	if err := checkMounts(c.VolumeMounts); err != nil {
		return "", err
	}
	for i := range c.VolumeMounts {
		mount := &c.VolumeMounts[i]
		target, ok := volumes[mount.Name]
		if !ok {
			return "", fmt.Errorf("container %s mounts volume %s, which the pod does not have", c.Name, mount.Name)
		}
		target, err := subPath(target, mount)
		if err != nil {
			return "", err
		}
		if err := link(target, inside(root, mount.MountPath)); err != nil {
			return "", fmt.Errorf("mounting volume %s: %w", mount.Name, err)
		}
	}
	if c.WorkingDir == "" {
		return root, nil
	}
	dir := inside(root, c.WorkingDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("making the working directory: %w", err)
	}
	return dir, nil
}

// inside maps a path of the container to one below root; .. cannot leave it.
func inside(root, path string) string { return filepath.Join(root, filepath.Join("/", path)) }

// checkMounts refuses one mount inside another: through a link, the inner one
// would be made inside the outer volume.
func checkMounts(mounts []v1.VolumeMount) error {
	for i := range mounts {
		if filepath.Join("/", mounts[i].MountPath) == "/" {
			return fmt.Errorf("mountPath %q is the root", mounts[i].MountPath)
		}
		for j := range mounts {
			outer, inner := filepath.Join("/", mounts[i].MountPath), filepath.Join("/", mounts[j].MountPath)
			if i != j && (inner == outer || strings.HasPrefix(inner, outer+"/")) {
				return fmt.Errorf("mountPath %s is inside %s, which the virtual node does not support", inner, outer)
			}
		}
	}
	return nil
}

func subPath(target string, mount *v1.VolumeMount) (string, error) {
	if mount.SubPathExpr != "" {
		return "", fmt.Errorf("volume %s: subPathExpr is not supported", mount.Name)
	}
	if mount.SubPath == "" {
		return target, nil
	}
	if !filepath.IsLocal(mount.SubPath) {
		return "", fmt.Errorf("volume %s: subPath %q leaves the volume", mount.Name, mount.SubPath)
	}
	path := filepath.Join(target, mount.SubPath)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", fmt.Errorf("making subPath: %w", err)
	}
	return path, nil
}

// link makes path a link to target, replacing an earlier link and nothing else.
func link(target, path string) error {
	if current, err := os.Readlink(path); err == nil {
		if current == target {
			return nil
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.Symlink(target, path)
}
