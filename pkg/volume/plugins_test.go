package volume

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func persistent(source v1.PersistentVolumeSource) *Spec {
	return &Spec{PersistentVolume: &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "data"},
		Spec:       v1.PersistentVolumeSpec{PersistentVolumeSource: source},
	}}
}

func csiSource(driver, handle string) v1.PersistentVolumeSource {
	return v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
}

func TestUniqueVolumeName(t *testing.T) {
	both := persistent(csiSource("a.example", "h1"))
	both.InlineVolumeSpec = &both.PersistentVolume.Spec
	for name, tc := range map[string]struct {
		spec *Spec
		want v1.UniqueVolumeName
		err  string
	}{
		"persistent": {spec: persistent(csiSource("a.example", "h1")), want: "kubernetes.io/csi/a.example^h1"},
		"second driver": {
			spec: persistent(csiSource("b.example", "x^y/z")), want: "kubernetes.io/csi/b.example^x^y/z",
		},
		"inline": {
			spec: &Spec{InlineVolumeSpec: &v1.PersistentVolumeSpec{PersistentVolumeSource: csiSource("a.example", "h2")}},
			want: "kubernetes.io/csi/a.example^h2",
		},
		"nil":    {err: "names no volume"},
		"empty":  {spec: &Spec{}, err: "names no volume"},
		"both":   {spec: both, err: "and an inline volume"},
		"nfs":    {spec: persistent(v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}), err: `naming volume "data": it is not a CSI volume`},
		"handle": {spec: persistent(csiSource("a.example", "")), err: "lacks the driver or the volume handle"},
		"driver": {spec: persistent(csiSource("c.example", "h1")), err: `driver "c.example" is not among those that attach volumes (a.example, b.example)`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := NewVolumePluginMgr("b.example", "a.example").UniqueVolumeName(tc.spec)
			if got != tc.want {
				t.Errorf("name %q, want %q", got, tc.want)
			}
			if (err != nil) != (tc.err != "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want one with %q", err, tc.err)
			}
		})
	}
}

// TestNoDrivers: a manager of nothing, or none, knows no driver and does not panic.
func TestNoDrivers(t *testing.T) {
	for _, m := range []*VolumePluginMgr{nil, NewVolumePluginMgr()} {
		if name, err := m.UniqueVolumeName(persistent(csiSource("a.example", "h1"))); err == nil || name != "" {
			t.Errorf("name %q, error %v", name, err)
		}
	}
}
