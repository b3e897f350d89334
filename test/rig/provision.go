package rig

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
)

// claimSize is what NewClaim asks for, in bytes.
const claimSize = 1 << 30

// NewClass creates a StorageClass of the driver, with what change does to it,
// which may be nil.
func (r *Rig) NewClass(ctx context.Context, name string, change func(*storagev1.StorageClass)) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: Driver}
	if change != nil {
		change(class)
	}
	class, err := r.Client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating StorageClass %s: %w", name, err)
	}
	return class, nil
}

// NewClaim creates a claim on 1 GiB of a class for one node at a time, with what
// change does to it, which may be nil.
func (r *Rig) NewClaim(ctx context.Context, name, class string, change func(*v1.PersistentVolumeClaim)) (*v1.PersistentVolumeClaim, error) {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: &class,
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceStorage: *resource.NewQuantity(claimSize, resource.BinarySI)}},
		},
	}
	if change != nil {
		change(claim)
	}
	claim, err := r.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating PersistentVolumeClaim %s: %w", name, err)
	}
	return claim, nil
}

// AwaitBound waits until a claim and its PersistentVolume are bound to each
// other, and gives the latter.
func (r *Rig) AwaitBound(ctx context.Context, namespace, claim string) (pv *v1.PersistentVolume, err error) {
	err = r.Await(ctx, "claim "+namespace+"/"+claim+" is bound", func() bool {
		now := r.Claim(namespace, claim)
		if now == nil || now.Status.Phase != v1.ClaimBound {
			return false
		}
		found := r.PV(now.Spec.VolumeName)
		if found == nil || found.Status.Phase != v1.VolumeBound || found.Spec.ClaimRef == nil || found.Spec.ClaimRef.UID != now.UID {
			return false
		}
		pv = found
		return true
	})
	return pv, err
}

// Class is the StorageClass of what Provision provisions.
const Class = "provisioned"

// Provision creates a claim of the class Class, which it makes when there is
// none, and waits until ha-sidecar has provisioned it and it is bound. The
// volume goes with the claim: see Unprovision. No modes: ReadWriteOnce.
func (r *Rig) Provision(ctx context.Context, claim string, modes ...v1.PersistentVolumeAccessMode) (*v1.PersistentVolume, error) {
	if _, err := r.NewClass(ctx, Class, func(class *storagev1.StorageClass) {
		policy := v1.PersistentVolumeReclaimDelete
		class.ReclaimPolicy = &policy
	}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	if _, err := r.NewClaim(ctx, claim, Class, func(c *v1.PersistentVolumeClaim) {
		if len(modes) > 0 {
			c.Spec.AccessModes = modes
		}
	}); err != nil {
		return nil, err
	}
	pv, err := r.AwaitBound(ctx, Namespace, claim)
	if err != nil {
		return nil, err
	}
	// A claim may bind to a volume that somebody else made.
	if by := pv.Annotations[provisionedBy]; by != Driver || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != Driver {
		return nil, fmt.Errorf("claim %s is bound to PersistentVolume %s, which %q provisioned and not %s", claim, pv.Name, by, Driver)
	}
	return pv, nil
}

// provisionedBy is the annotation that names a PersistentVolume's provisioner.
const provisionedBy = "pv.kubernetes.io/provisioned-by"

// Unprovision deletes a claim that Provision made, and waits until its
// PersistentVolume and the volume at the driver are gone too.
func (r *Rig) Unprovision(ctx context.Context, claim string, pv *v1.PersistentVolume) error {
	if err := r.Client.CoreV1().PersistentVolumeClaims(Namespace).Delete(ctx, claim, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting PersistentVolumeClaim %s: %w", claim, err)
	}
	var bad error
	err := r.Await(ctx, "claim "+claim+", PersistentVolume "+pv.Name+" and its volume are gone", func() bool {
		if r.Claim(Namespace, claim) != nil || r.PV(pv.Name) != nil {
			return false
		}
		volumes, err := r.Driver.Volumes(ctx)
		bad = err
		return err != nil || !slices.ContainsFunc(volumes, func(v simctl.Volume) bool { return v.ID == pv.Spec.CSI.VolumeHandle })
	})
	return errors.Join(err, bad)
}

// VolumeOf is the observer's view of the PersistentVolume that a claim of
// Namespace is bound to, nil when there is none.
func (r *Rig) VolumeOf(claim string) *v1.PersistentVolume {
	c := r.Claim(Namespace, claim)
	if c == nil || c.Spec.VolumeName == "" {
		return nil
	}
	return r.PV(c.Spec.VolumeName)
}

// Handle is the ID at the driver of a volume, by the name of its claim or of its
// PersistentVolume.
func (r *Rig) Handle(name string) (string, error) {
	pv := r.VolumeOf(name)
	if pv == nil {
		pv = r.PV(name)
	}
	if pv == nil || pv.Spec.CSI == nil {
		return "", fmt.Errorf("%s is neither a claim with a volume of a CSI driver nor such a PersistentVolume", name)
	}
	return pv.Spec.CSI.VolumeHandle, nil
}

// DriverVolumes are the volumes that exist at the driver, by the name that
// CreateVolume was told.
func (r *Rig) DriverVolumes(ctx context.Context) (map[string]simctl.Volume, error) {
	all, err := r.Driver.Volumes(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing the driver's volumes: %w", err)
	}
	named := map[string]simctl.Volume{}
	for _, volume := range all {
		named[volume.Name] = volume
	}
	return named, nil
}

//go:embed crds/*.yaml
var crdFiles embed.FS

// snapshotCRDs are the definitions of VolumeSnapshot, VolumeSnapshotContent and
// VolumeSnapshotClass.
func snapshotCRDs() (crds []*unstructured.Unstructured, err error) {
	paths, err := fs.Glob(crdFiles, "crds/*.yaml")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		content, err := crdFiles.ReadFile(path)
		if err != nil {
			return nil, err
		}
		crd := &unstructured.Unstructured{}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
		for len(crd.Object) == 0 { // the comment is a document of its own
			if err := decoder.Decode(&crd.Object); err != nil {
				return nil, fmt.Errorf("reading %s: %w", path, err)
			}
		}
		unstructured.RemoveNestedField(crd.Object, "status") // the server's
		crds = append(crds, crd)
	}
	return crds, nil
}

// SnapshotCRDs makes the cluster know VolumeSnapshots, their contents and their
// classes, as an administrator does before snapshots are used. Nothing acts on
// them: snapshot-controller is not here. It returns when they can be created.
func (r *Rig) SnapshotCRDs(ctx context.Context) error {
	crds, err := snapshotCRDs()
	if err != nil {
		return err
	}
	definitions := r.Dynamic.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, crd := range crds {
		if err := r.apply(ctx, crd, false); err != nil {
			return err
		}
		if err := r.Await(ctx, crd.GetName()+" is established", func() bool {
			now, err := definitions.Get(ctx, crd.GetName(), metav1.GetOptions{})
			return err == nil && established(now)
		}); err != nil {
			return err
		}
	}
	return nil
}

func established(crd *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
	if err != nil {
		return false
	}
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == "Established" {
			return condition["status"] == "True"
		}
	}
	return false
}
