package csiprovisioner

import (
	"errors"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

func volume1(change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-1", Annotations: map[string]string{provisioner.AnnotationProvisionedBy: testDriver}},
		Spec: v1.PersistentVolumeSpec{
			StorageClassName: "fast", ClaimRef: &v1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid-1"},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: testDriver, VolumeHandle: "vol-7"}},
		},
	}
	for _, f := range change {
		f(pv)
	}
	return pv
}

func annotatedSecret(name, namespace string) func(*v1.PersistentVolume) {
	return func(pv *v1.PersistentVolume) {
		pv.Annotations[annotationDeletionSecretName], pv.Annotations[annotationDeletionSecretNamespace] = name, namespace
	}
}

func TestSecretsToDeleteWith(t *testing.T) {
	secret := map[string]string{"password": canary}
	for name, c := range map[string]struct {
		pv    *v1.PersistentVolume
		class *storagev1.StorageClass
		want  map[string]string
		err   string
	}{
		"named by the PersistentVolume":              {pv: volume1(annotatedSecret("s", "sys")), want: secret},
		"before those of the class":                  {pv: volume1(annotatedSecret("s", "sys")), class: class(named("other", "sys")), want: secret},
		"none, by the PersistentVolume":              {pv: volume1(annotatedSecret("", "")), class: class(named("s", "sys"))},
		"of the class":                               {pv: volume1(), class: class(named("s", "sys")), want: secret},
		"of the class, deprecated":                   {pv: volume1(), class: class(map[string]string{"csiProvisionerSecretName": "s", "csiProvisionerSecretNamespace": "sys"}), want: secret},
		"of the class, for all":                      {pv: volume1(), class: class(map[string]string{anySecret.name: "s", anySecret.namespace: "sys"}), want: secret},
		"of the class, by the names":                 {pv: volume1(), class: class(named("${pvc.name}-${pv.name}", "${pvc.namespace}")), want: map[string]string{"password": "by names"}},
		"of the class, one annotation":               {pv: volume1(func(pv *v1.PersistentVolume) { pv.Annotations[annotationDeletionSecretName] = "x" }), class: class(named("s", "sys")), want: secret},
		"of the class, by annotations":               {pv: volume1(), class: class(named("${pvc.annotations['a']}", "sys")), err: "name it in the annotations " + annotationDeletionSecretName},
		"of the class, by a claim that is not known": {pv: volume1(func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }), class: class(named("${pvc.name}", "sys")), err: "finding the secret to delete the volume with"},
		"of the class, without a claim":              {pv: volume1(func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil }), class: class(named("s", "sys")), want: secret},
		"the class has none":                         {pv: volume1(), class: class(nil)},
		"the class is gone":                          {pv: volume1()},
		"there is no class":                          {pv: volume1(func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = "" }), class: class(named("s", "sys"))},
		"the secret is gone":                         {pv: volume1(annotatedSecret("gone", "sys"))},
		"the secret may not be read":                 {pv: volume1(annotatedSecret("hidden", "sys")), err: "allow get of secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil, secretOf("sys", "s", canary), secretOf("ns", "data-pv-1", "by names"))
			if c.class != nil {
				if err := w.classes.Add(c.class); err != nil {
					t.Fatal(err)
				}
			}
			err := w.p.DeleteExt(t.Context(), c.pv)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), canary) {
					t.Errorf("error %v, want %q", err, c.err)
				}
				w.wantCalls(0, 0)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			w.wantCalls(0, 1)
			if got := w.driver.deleted[0]; got.VolumeId != "vol-7" || !cmp.Equal(c.want, got.Secrets) {
				t.Errorf("the request is %v", got)
			}
		})
	}
}

func TestVolumesThatAreNotDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		pv    *v1.PersistentVolume
		caps  Capabilities
		texts []string
	}{
		"another driver's": {volume1(func(pv *v1.PersistentVolume) { pv.Spec.CSI.Driver = "other.example.com" }), Capabilities{CreateDelete: true},
			[]string{"PersistentVolume pv-1 is of driver other.example.com, not csi.example.com", provisioner.AnnotationProvisionedBy}},
		"without a handle": {volume1(func(pv *v1.PersistentVolume) { pv.Spec.CSI.VolumeHandle = "" }), Capabilities{CreateDelete: true},
			[]string{"PersistentVolume pv-1 names no CSI volume", "by hand"}},
		"of no driver": {volume1(func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{}}
		}), Capabilities{CreateDelete: true}, []string{"names no CSI volume"}},
		"in-tree": {volume1(func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "x"}}
		}), Capabilities{CreateDelete: true}, []string{"names no CSI volume and no in-tree one that has moved"}},
		"that the driver cannot delete": {volume1(), Capabilities{}, []string{"does not have CREATE_DELETE_VOLUME", "delete volume vol-7 by hand"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.caps = c.caps
			err := w.p.DeleteExt(t.Context(), c.pv)
			for _, text := range c.texts {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Errorf("%v does not say %q", err, text)
				}
			}
			w.wantCalls(0, 0)
		})
	}
}

func TestDriversRefusalToDelete(t *testing.T) {
	w := newWorld(t, nil)
	refusal := answered(codes.FailedPrecondition)
	w.driver.remove = func(*csi.DeleteVolumeRequest) error { return refusal }
	if err := w.p.DeleteExt(t.Context(), volume1()); !errors.Is(err, refusal) {
		t.Errorf("error %v", err)
	}
	// It may be called again after it has succeeded.
	w.driver.remove = nil
	for range 2 {
		if err := w.p.DeleteExt(t.Context(), volume1()); err != nil {
			t.Errorf("error %v", err)
		}
	}
}

func TestVolumeOfAnotherNodeIsLeftToIt(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Mine = func(pv *v1.PersistentVolume) bool { return pv.Name != "pv-1" } })
	var ignored *provisioner.IgnoredError
	if err := w.p.DeleteExt(t.Context(), volume1()); !errors.As(err, &ignored) {
		t.Errorf("error %v", err)
	}
	w.wantCalls(0, 0)
}
