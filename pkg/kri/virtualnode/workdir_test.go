package virtualnode

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestWorkDir(t *testing.T) {
	root, data, cfg := filepath.Join(t.TempDir(), "work"), t.TempDir(), t.TempDir()
	c := &v1.Container{Name: "c", WorkingDir: "/srv/app", VolumeMounts: []v1.VolumeMount{
		{Name: "data", MountPath: "/data"}, {Name: "cfg", MountPath: "/etc/deep/cfg"}, {Name: "data", MountPath: "/sub", SubPath: "a/b"},
	}}
	volumes := map[string]string{"data": data, "cfg": cfg}
	for range 2 { // A restart finds what is there.
		dir, err := prepareWorkDir(root, c, volumes)
		if err != nil || dir != filepath.Join(root, "srv/app") {
			t.Fatalf("%q, %v", dir, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "data", "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(data, "f"), filepath.Join(data, "a/b"), filepath.Join(root, "etc/deep/cfg"), filepath.Join(root, "sub")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	// A volume that is elsewhere now.
	volumes["data"] = t.TempDir()
	if _, err := prepareWorkDir(root, c, volumes); err != nil {
		t.Fatal(err)
	}
	if target, _ := os.Readlink(filepath.Join(root, "data")); target != volumes["data"] {
		t.Errorf("data is still at %s", target)
	}
}

func TestWorkDirStaysInside(t *testing.T) {
	root := filepath.Join(t.TempDir(), "work")
	c := &v1.Container{WorkingDir: "../../../escape", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "../../evil"}}}
	dir, err := prepareWorkDir(root, c, map[string]string{"v": t.TempDir()})
	if err != nil || dir != filepath.Join(root, "escape") {
		t.Fatalf("%q, %v", dir, err)
	}
	if _, err := os.Lstat(filepath.Join(root, "evil")); err != nil {
		t.Error(err)
	}
}

func TestWorkDirRefuses(t *testing.T) {
	occupied := t.TempDir()
	if err := os.MkdirAll(filepath.Join(occupied, "data", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	for want, tc := range map[string]struct {
		root   string
		mounts []v1.VolumeMount
	}{
		"does not have":      {"", []v1.VolumeMount{{Name: "none", MountPath: "/x"}}},
		"is inside":          {"", []v1.VolumeMount{{Name: "v", MountPath: "/a/b"}, {Name: "v", MountPath: "/a"}}},
		"is inside /same":    {"", []v1.VolumeMount{{Name: "v", MountPath: "/same"}, {Name: "v", MountPath: "/same/"}}},
		"is the root":        {"", []v1.VolumeMount{{Name: "v", MountPath: "/"}}},
		"leaves the volume":  {"", []v1.VolumeMount{{Name: "v", MountPath: "/x", SubPath: "../x"}}},
		"subPathExpr is not": {"", []v1.VolumeMount{{Name: "v", MountPath: "/x", SubPathExpr: "$(A)"}}},
		"mounting volume v":  {occupied, []v1.VolumeMount{{Name: "v", MountPath: "/data"}}},
	} {
		if tc.root == "" {
			tc.root = t.TempDir()
		}
		_, err := prepareWorkDir(tc.root, &v1.Container{VolumeMounts: tc.mounts}, map[string]string{"v": t.TempDir()})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", tc.mounts, err, want)
		}
	}
	// /ab is not inside /a.
	mounts := []v1.VolumeMount{{Name: "v", MountPath: "/a"}, {Name: "v", MountPath: "/ab"}}
	if _, err := prepareWorkDir(t.TempDir(), &v1.Container{VolumeMounts: mounts}, map[string]string{"v": t.TempDir()}); err != nil {
		t.Error(err)
	}
}
