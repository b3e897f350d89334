package mount

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	"google.golang.org/grpc/codes"
)

func localPod(source v1.VolumeSource) *v1.Pod {
	pod := claimPod("a")
	pod.Spec.Volumes = []v1.Volume{{Name: "x", VolumeSource: source}}
	return pod
}

func TestLocalVolumes(t *testing.T) {
	host := t.TempDir()
	made := filepath.Join(host, "made")
	for what, source := range map[string]v1.VolumeSource{
		"emptyDir":    {EmptyDir: &v1.EmptyDirVolumeSource{}},
		"projected":   {Projected: &v1.ProjectedVolumeSource{}},
		"secret":      {Secret: &v1.SecretVolumeSource{}},
		"configMap":   {ConfigMap: &v1.ConfigMapVolumeSource{}},
		"downwardAPI": {DownwardAPI: &v1.DownwardAPIVolumeSource{}},
		"hostPath":    {HostPath: &v1.HostPathVolumeSource{Path: made, Type: ptr.To(v1.HostPathDirectoryOrCreate)}},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			path := r.mustMount(localPod(source))["x"]
			if info, err := os.Stat(path); err != nil || !info.IsDir() {
				t.Fatalf("%q: %v", path, err)
			}
			if (path == made) != (source.HostPath != nil) {
				t.Errorf("at %s", path)
			}
			if err := r.RemoveLocal("a"); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); (err == nil) != (source.HostPath != nil) {
				t.Errorf("after the pod: %v", err)
			}
		})
	}
}

func TestLocalVolumesRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, source := range map[string]v1.VolumeSource{
		"does not support":         {NFS: &v1.NFSVolumeSource{}},
		"is not absolute":          {HostPath: &v1.HostPathVolumeSource{Path: "relative"}},
		"is not a directory":       {HostPath: &v1.HostPathVolumeSource{Path: file, Type: ptr.To(v1.HostPathDirectory)}},
		"no such file":             {HostPath: &v1.HostPathVolumeSource{Path: file + "x", Type: ptr.To(v1.HostPathDirectory)}},
		"x is of a kind that the ": {},
	} {
		r := newRig(t)
		if _, err := r.Mount(t.Context(), localPod(source)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", source, err, want)
		}
	}
}

// TestRemoveLocalKeepsData: what a driver left in a target path is somebody's.
func TestRemoveLocalKeepsData(t *testing.T) {
	r := newRig(t, "v")
	path := r.mustMount(claimPod("a", "v"))["vol-v"]
	file := filepath.Join(path, "precious")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.RemoveLocal("a"); err == nil || !strings.Contains(err.Error(), "still mounted") {
		t.Errorf("removing a mounted volume: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestMountsAtRandom lets pods come and go while the driver fails now and then.
// The driver itself checks that no volume is touched outside volumesInUse; here
// the books are checked, and that everything ends clean.
func TestMountsAtRandom(t *testing.T) {
	r := newRig(t, "v", "w")
	rapid.Check(t, func(rt *rapid.T) {
		r.cfg.Root = t.TempDir() // A new machine.
		r.restart()
		pods := map[types.UID]*v1.Pod{"a": claimPod("a", "v"), "b": claimPod("b", "v", "w"), "c": claimPod("c", "w")}
		uid := rapid.SampledFrom([]types.UID{"a", "b", "c"})
		rt.Repeat(map[string]func(*rapid.T){
			"mount":   func(t *rapid.T) { _, _ = r.Mount(context.Background(), pods[uid.Draw(t, "pod")]) },
			"unmount": func(t *rapid.T) { _ = r.Unmount(context.Background(), uid.Draw(t, "pod")) },
			"restart": func(*rapid.T) { r.restart() },
			"fail": func(t *rapid.T) {
				code := rapid.SampledFrom([]codes.Code{codes.OK, codes.Internal}).Draw(t, "code")
				r.driver.Fail(rapid.SampledFrom([]string{"Stage", "Publish", "Unpublish", "Unstage"}).Draw(t, "method"), code)
			},
			"": func(t *rapid.T) {
				used := map[string]bool{}
				for _, m := range r.Mounted() {
					used[m.Handle] = true
				}
				for _, name := range r.InUse() {
					delete(used, strings.TrimPrefix(string(name), string(unique(""))))
				}
				if len(used) != 0 {
					t.Fatalf("published but not in use: %v", used)
				}
			},
		})
		for _, method := range []string{"Stage", "Publish", "Unpublish", "Unstage"} {
			r.driver.Fail(method, codes.OK)
		}
		for _, user := range append(r.Users(), "a", "b", "c") {
			if err := r.Unmount(context.Background(), user); err != nil {
				rt.Fatal(err)
			}
		}
		if len(r.InUse()) != 0 || len(r.Mounted()) != 0 || len(r.reported()) != 0 {
			rt.Fatalf("left: %v, %v, %v", r.InUse(), r.Mounted(), r.reported())
		}
	})
}
