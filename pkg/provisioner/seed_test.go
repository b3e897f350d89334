package provisioner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
)

// The signatures of the seed: a change of one does not compile.
var (
	_ func(kubernetes.Interface, time.Duration, string, Provisioner, string, bool, int, ...Option) *ProvisionController = NewProvisionController
	_ func(*ProvisionController, <-chan struct{})                                                                       = (*ProvisionController).Run
	_ error                                                                                                             = &IgnoredError{Reason: ""}
	_ Option                                                                                                            = func(*ProvisionController) {}
	_ interface {
		Provision(VolumeOptions) (*v1.PersistentVolume, error)
		Delete(*v1.PersistentVolume) error
	} = Provisioner(nil)
	_ Provisioner = plain{} // which has these two alone
	_ interface {
		ProvisionExt(context.Context, VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error)
	} = StatefulProvisioner(nil)
	_ = [...]ProvisioningState{ProvisioningFinished, ProvisioningInBackground, ProvisioningNoChange, ProvisioningReschedule}
	_ = VolumeOptions{
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete, PVName: "", PVC: &v1.PersistentVolumeClaim{}, Parameters: map[string]string{},
	}
)

func bad() *maker {
	return &maker{
		provision: func(VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			return nil, ProvisioningFinished, errors.New("fake error")
		},
		remove: func(*v1.PersistentVolume) error { return errors.New("fake error") },
	}
}

// TestController has the cases of the seed's test of that name, and those that
// came later with its descendants.
func TestController(t *testing.T) {
	const recycle = v1.PersistentVolumeReclaimRecycle
	class1, class2 := storageClass("class-1", ourName), storageClass("class-2", otherName)
	claim1 := claim("claim-1", "uid-1-1", "class-1", ourName)
	block := func(c *v1.PersistentVolumeClaim) { mode := v1.PersistentVolumeBlock; c.Spec.VolumeMode = &mode }
	for name, c := range map[string]struct {
		setup
		want []string
		// check looks at more than the names of what is there.
		check func(t *testing.T, w *world, pvs map[string]*v1.PersistentVolume)
	}{
		"provision for claim-1 but not claim-2": {
			setup: setup{objects: []runtime.Object{class1, class2, claim1, claim("claim-2", "uid-1-2", "class-2", otherName)}},
			want:  []string{"pvc-uid-1-1"},
			check: func(t *testing.T, _ *world, pvs map[string]*v1.PersistentVolume) {
				pv := pvs["pvc-uid-1-1"]
				want := map[string]string{AnnotationProvisionedBy: ourName, annotationStorageClass: "class-1"}
				if diff := cmp.Diff(want, pv.Annotations); diff != "" {
					t.Errorf("annotations (-want +got):\n%s", diff)
				}
				if ref := pv.Spec.ClaimRef; ref == nil || ref.UID != "uid-1-1" || ref.Name != "claim-1" || ref.Namespace != "default" || ref.Kind != "PersistentVolumeClaim" {
					t.Errorf("claimRef = %+v", ref)
				}
			},
		},
		"delete volume-1 but not volume-2": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, del, ourName), pv("volume-2", v1.VolumeReleased, del, otherName)}},
			want:  []string{"volume-2"},
		},
		"don't provision for claim-1 because it's already bound": {
			setup: setup{objects: []runtime.Object{class1, claim("claim-1", "uid-1-1", "class-1", ourName, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "foo" })}},
		},
		"don't provision for claim-1 because its class doesn't exist": {setup: setup{objects: []runtime.Object{claim1}}},
		"don't delete volume-1 because it's still bound": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeBound, del, ourName)}}, want: []string{"volume-1"},
		},
		"don't delete volume-1 because its reclaim policy is not delete": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, retain, ourName)}}, want: []string{"volume-1"},
		},
		"provisioner fails to provision for claim-1: no pv is created": {setup: setup{objects: []runtime.Object{class1, claim1}, maker: bad()}},
		"provisioner fails to delete volume-1: pv is not deleted": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, del, ourName)}, maker: bad()}, want: []string{"volume-1"},
		},
		"try to provision for claim-1 but fail to save the pv object": {
			setup: setup{objects: []runtime.Object{class1, claim1}, before: failing("create", "persistentvolumes", 0)},
			check: func(t *testing.T, w *world, _ map[string]*v1.PersistentVolume) {
				if made, removed := w.maker.calls(); made != 1 || removed != 0 {
					t.Errorf("%d volumes made and %d deleted, want the one kept until it can be saved", made, removed)
				}
			},
		},
		"try to delete volume-1 but fail to delete the pv object": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, del, ourName)}, before: failing("delete", "persistentvolumes", 0)},
			want:  []string{"volume-1"},
			check: func(t *testing.T, w *world, _ map[string]*v1.PersistentVolume) {
				if _, removed := w.maker.calls(); removed != 1 {
					t.Errorf("the volume was deleted %d times, want once", removed)
				}
			},
		},
		"don't provision, volume already exists": {
			setup: setup{objects: []runtime.Object{class1, claim1, pv("pvc-uid-1-1", v1.VolumeAvailable, del, ourName)}},
			want:  []string{"pvc-uid-1-1"},
			check: func(t *testing.T, w *world, _ map[string]*v1.PersistentVolume) {
				if made, _ := w.maker.calls(); made != 0 {
					t.Errorf("%d volumes made", made)
				}
			},
		},
		"don't provision, provisioner does not support raw block": {
			setup: setup{objects: []runtime.Object{class1, claim("claim-1", "uid-1-1", "class-1", ourName, block)}},
			check: func(t *testing.T, w *world, _ map[string]*v1.PersistentVolume) {
				if made, _ := w.maker.calls(); made != 0 {
					t.Errorf("the provisioner was asked %d times", made)
				}
				if events := w.told(); len(events) == 0 || !strings.Contains(events[0], "does not support block volume provisioning") {
					t.Errorf("events: %q", events)
				}
			},
		},
		"provision raw block where the provisioner supports it": {
			setup: setup{objects: []runtime.Object{class1, claim("claim-1", "uid-1-1", "class-1", ourName, block)}, maker: &maker{block: true}},
			want:  []string{"pvc-uid-1-1"},
		},
		"storage class provisioner name distinct from controller name": {
			setup: setup{
				objects: []runtime.Object{storageClass("class-1", "in.tree/name"), claim("claim-1", "uid-1-1", "class-1", "in.tree/name")},
				options: []Option{WithAdditionalNames("in.tree/name")},
			},
			want: []string{"pvc-uid-1-1"},
			check: func(t *testing.T, _ *world, pvs map[string]*v1.PersistentVolume) {
				if by := pvs["pvc-uid-1-1"].Annotations[AnnotationProvisionedBy]; by != "in.tree/name" {
					t.Errorf("provisioned by %q", by)
				}
			},
		},
		"don't provision, because it is ignored": {
			setup: setup{objects: []runtime.Object{class1, claim1}, maker: &maker{provision: func(VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
				return nil, ProvisioningFinished, fmt.Errorf("here: %w", &IgnoredError{Reason: "it is not ours"})
			}}},
			check: func(t *testing.T, w *world, _ map[string]*v1.PersistentVolume) {
				if events := w.told(); len(events) != 0 {
					t.Errorf("events: %q", events)
				}
			},
		},
		"provision with Retain reclaim policy": {
			setup: setup{objects: []runtime.Object{storageClass("class-1", ourName, withPolicy(retain)), claim1}}, want: []string{"pvc-uid-1-1"},
			check: func(t *testing.T, _ *world, pvs map[string]*v1.PersistentVolume) {
				if pv := pvs["pvc-uid-1-1"]; pv.Spec.PersistentVolumeReclaimPolicy != retain || len(pv.Finalizers) != 0 {
					t.Errorf("policy %s, finalizers %v", pv.Spec.PersistentVolumeReclaimPolicy, pv.Finalizers)
				}
			},
		},
		"finalizer set on new PV": {
			setup: setup{objects: []runtime.Object{class1, claim1}}, want: []string{"pvc-uid-1-1"}, check: finalizersAre("pvc-uid-1-1", Finalizer),
		},
		"no finalizer on new PV where they are off": {
			setup: setup{objects: []runtime.Object{class1, claim1}, options: []Option{WithFinalizer(false)}}, want: []string{"pvc-uid-1-1"}, check: finalizersAre("pvc-uid-1-1"),
		},
		"finalizer removed where they are off": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeBound, del, ourName, csiVolume(ourName, "h"), withFinalizers("a/b", Finalizer))}, options: []Option{WithFinalizer(false)}},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1", "a/b"),
		},
		"finalizer removed with policy Retain": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeBound, retain, ourName, csiVolume(ourName, "h"), withFinalizers(Finalizer))}},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1"),
		},
		"finalizer removed with policy Recycle": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeBound, recycle, ourName, csiVolume(ourName, "h"), withFinalizers(Finalizer))}},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1"),
		},
		"finalizer not added to Terminating PV": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, del, ourName, csiVolume(ourName, "h"), withFinalizers("a/b"), terminating)}},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1", "a/b"),
		},
		"finalizer added to Bound statically provisioned CSI PV": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeBound, del, "", csiVolume(ourName, "h"))}},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1", Finalizer),
		},
		"finalizer added to Bound migrated in-tree PV": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeBound, del, "kubernetes.io/in-tree", func(v *v1.PersistentVolume) { v.Annotations[AnnotationMigratedTo] = ourName })}},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1", Finalizer),
		},
		"another's CSI PV is left alone": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, del, "", csiVolume(otherName, "h"))}},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1"),
		},
		"Released PV with finalizer is deleted": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, del, ourName, withFinalizers(Finalizer))}},
		},
		"Delete fails: PV and finalizer are kept": {
			setup: setup{objects: []runtime.Object{pv("volume-1", v1.VolumeReleased, del, ourName, withFinalizers(Finalizer))}, maker: bad()},
			want:  []string{"volume-1"}, check: finalizersAre("volume-1", Finalizer),
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, c.setup)
				w.rest(30)
				pvs := w.pvs()
				if diff := cmp.Diff(c.want, slices.Sorted(maps.Keys(pvs))); diff != "" {
					t.Errorf("PersistentVolumes (-want +got):\n%s", diff)
				}
				if c.check != nil && !t.Failed() {
					c.check(t, w, pvs)
				}
			})
		})
	}
}

func finalizersAre(name string, want ...string) func(*testing.T, *world, map[string]*v1.PersistentVolume) {
	return func(t *testing.T, _ *world, pvs map[string]*v1.PersistentVolume) {
		if !slices.Equal(pvs[name].Finalizers, want) {
			t.Errorf("finalizers of %s are %v, want %v", name, pvs[name].Finalizers, want)
		}
	}
}

// TestMultipleControllers: in the seed, five controllers elected one for each
// claim. One process acts now, so it is one controller of which all that an
// event repeats must not make it provision twice.
func TestMultipleControllers(t *testing.T) {
	t.Run("call provision exactly once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setup{objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName)}})
			w.rest(30) // client-go resyncs each second at most
			if made, _ := w.maker.calls(); made != 1 {
				t.Errorf("Provision was called %d times, want once", made)
			}
		})
	})
}

func TestShouldProvision(t *testing.T) {
	class := func(name, provisioner string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
		return storageClass(name, provisioner, change...)
	}
	byField := func(c *v1.PersistentVolumeClaim) { name := "class-1"; c.Spec.StorageClassName = &name }
	for name, c := range map[string]struct {
		claim  *v1.PersistentVolumeClaim
		class  *storagev1.StorageClass
		server string
		names  []string
		want   bool
	}{
		"should provision":                             {claim: claim("c", "u", "class-1", ourName), class: class("class-1", ourName), want: true},
		"claim already bound":                          {claim: claim("c", "u", "class-1", ourName, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "v" }), class: class("class-1", ourName)},
		"no such class":                                {claim: claim("c", "u", "class-1", ourName), class: class("class-2", ourName)},
		"class of other provisioner":                   {claim: claim("c", "u", "class-1", otherName), class: class("class-1", otherName)},
		"1.5: annotation ours though class another's":  {claim: claim("c", "u", "class-1", ourName), class: class("class-1", otherName), want: true},
		"1.5: annotation another's though class ours":  {claim: claim("c", "u", "class-1", otherName), class: class("class-1", ourName)},
		"1.5: no annotation":                           {claim: claim("c", "u", "class-1", ""), class: class("class-1", ourName)},
		"1.4: unknown annotation is ignored":           {claim: claim("c", "u", "class-1", otherName), class: class("class-1", ourName), server: "1.4.0", want: true},
		"1.4: no annotation needed":                    {claim: claim("c", "u", "class-1", ""), class: class("class-1", ourName), server: "1.4.0", want: true},
		"1.4: class of other provisioner":              {claim: claim("c", "u", "class-1", ourName), class: class("class-1", otherName), server: "1.4.0"},
		"additional name":                              {claim: claim("c", "u", "class-1", "in.tree/x"), class: class("class-1", "in.tree/x"), names: []string{"in.tree/x"}, want: true},
		"unknown name beside additional ones":          {claim: claim("c", "u", "class-1", "in.tree/y"), class: class("class-1", "in.tree/y"), names: []string{"in.tree/x"}},
		"GA annotation":                                {claim: claim("c", "u", "class-1", "", annotated(AnnotationStorageProvisioner, ourName)), class: class("class-1", ourName), want: true},
		"GA annotation wins over beta, ours":           {claim: claim("c", "u", "class-1", otherName, annotated(AnnotationStorageProvisioner, ourName)), class: class("class-1", ourName), want: true},
		"GA annotation wins over beta, another's":      {claim: claim("c", "u", "class-1", ourName, annotated(AnnotationStorageProvisioner, otherName)), class: class("class-1", ourName)},
		"migrated to us":                               {claim: claim("c", "u", "class-1", "kubernetes.io/aws-ebs", annotated(AnnotationMigratedTo, ourName)), class: class("class-1", "kubernetes.io/aws-ebs"), want: true},
		"in-tree and not migrated":                     {claim: claim("c", "u", "class-1", "kubernetes.io/aws-ebs"), class: class("class-1", "kubernetes.io/aws-ebs")},
		"class by field":                               {claim: claim("c", "u", "", ourName, byField), class: class("class-1", ourName), want: true},
		"WaitForFirstConsumer without a selected node": {claim: claim("c", "u", "class-1", ourName), class: class("class-1", ourName, waitForConsumer)},
		"WaitForFirstConsumer with a selected node":    {claim: claim("c", "u", "class-1", ourName, annotated(AnnotationSelectedNode, "n")), class: class("class-1", ourName, waitForConsumer), want: true},
		"WaitForFirstConsumer with the alpha name":     {claim: claim("c", "u", "class-1", ourName, annotated(annotationAlphaSelectedNode, "n")), class: class("class-1", ourName, waitForConsumer), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.server == "" {
				c.server = server
			}
			r := rules{names: append([]string{ourName}, c.names...), server: version.MustParseSemantic(c.server), finalizer: true}
			var found *storagev1.StorageClass
			if className(c.claim) == c.class.Name {
				found = c.class
			}
			if got := r.addressed(c.claim) && r.mayProvision(c.claim, found); got != c.want {
				t.Errorf("provisions: %t, want %t", got, c.want)
			}
		})
	}
}

func TestShouldDelete(t *testing.T) {
	for name, c := range map[string]struct {
		pv           *v1.PersistentVolume
		server       string
		noFinalizers bool
		want         bool
	}{
		"should delete":                           {pv: pv("v", v1.VolumeReleased, del, ourName), want: true},
		"1.4 and failed: should delete":           {pv: pv("v", v1.VolumeFailed, del, ourName), server: "1.4.0", want: true},
		"1.5 and failed: shouldn't delete":        {pv: pv("v", v1.VolumeFailed, del, ourName)},
		"volume still bound":                      {pv: pv("v", v1.VolumeBound, del, ourName)},
		"non-delete reclaim policy":               {pv: pv("v", v1.VolumeReleased, retain, ourName)},
		"not this provisioner's job":              {pv: pv("v", v1.VolumeReleased, del, otherName)},
		"nobody's":                                {pv: pv("v", v1.VolumeReleased, del, "")},
		"static CSI":                              {pv: pv("v", v1.VolumeReleased, del, "", csiVolume(ourName, "h")), want: true},
		"static CSI without finalizers":           {pv: pv("v", v1.VolumeReleased, del, "", csiVolume(ourName, "h")), noFinalizers: true},
		"Terminating without our finalizer":       {pv: pv("v", v1.VolumeReleased, del, ourName, terminating)},
		"Terminating with our finalizer":          {pv: pv("v", v1.VolumeReleased, del, ourName, terminating, withFinalizers(Finalizer)), want: true},
		"Terminating where finalizers are off":    {pv: pv("v", v1.VolumeReleased, del, ourName, terminating, withFinalizers(Finalizer)), noFinalizers: true},
		"migrated to us":                          {pv: pv("v", v1.VolumeReleased, del, "in.tree/x", func(v *v1.PersistentVolume) { v.Annotations[AnnotationMigratedTo] = ourName }), want: true},
		"migrated to another":                     {pv: pv("v", v1.VolumeReleased, del, "in.tree/x", func(v *v1.PersistentVolume) { v.Annotations[AnnotationMigratedTo] = otherName })},
		"CSI of ours but provisioned by another":  {pv: pv("v", v1.VolumeReleased, del, otherName, csiVolume(ourName, "h"))},
		"Released without a claimRef (tombstone)": {pv: pv("v", v1.VolumeReleased, del, ourName, func(v *v1.PersistentVolume) { v.Spec.ClaimRef = nil }), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.server == "" {
				c.server = server
			}
			r := rules{names: []string{ourName}, server: version.MustParseSemantic(c.server), finalizer: !c.noFinalizers}
			if got := r.shouldDelete(c.pv); got != c.want {
				t.Errorf("deletes: %t, want %t", got, c.want)
			}
		})
	}
}

func TestIgnoredError(t *testing.T) {
	if got := (&IgnoredError{Reason: "of a reason"}).Error(); got != "ignored because of a reason" {
		t.Errorf("Error() = %q", got)
	}
}
