package provision

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const snapshotGroup = "snapshot.storage.k8s.io"

var (
	snapshots = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshots"}
	contents  = schema.GroupVersionResource{Group: snapshotGroup, Version: "v1", Resource: "volumesnapshotcontents"}
)

// snapshot takes one of a bound claim and makes its objects, in the place of
// snapshot-controller and its sidecar. Its name is the scene's.
func (s *scene) snapshot(of *v1.PersistentVolumeClaim, driver string) {
	s.t.Helper()
	s.controller(func(ctx context.Context, c csi.ControllerClient) error {
		_, err := c.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: s.name, SourceVolumeId: volumeID(of)})
		return err
	})
	all := s.Dynamic.Resource(snapshots).Namespace(rig.Namespace)
	made, err := all.Create(s.ctx, s.object("VolumeSnapshot", map[string]any{
		"spec": map[string]any{"source": map[string]any{"volumeSnapshotContentName": s.name}},
	}), metav1.CreateOptions{})
	s.must(err)
	content, err := s.Dynamic.Resource(contents).Create(s.ctx, s.object("VolumeSnapshotContent", map[string]any{
		"spec": map[string]any{
			"driver": driver, "deletionPolicy": "Delete", "sourceVolumeMode": "Filesystem",
			"source": map[string]any{"snapshotHandle": s.snapshotID()},
			"volumeSnapshotRef": map[string]any{
				"apiVersion": snapshotGroup + "/v1", "kind": "VolumeSnapshot", "namespace": rig.Namespace, "name": s.name, "uid": string(made.GetUID()),
			},
		},
	}), metav1.CreateOptions{})
	s.must(err)
	content.Object["status"] = map[string]any{"snapshotHandle": s.snapshotID(), "readyToUse": true, "restoreSize": int64(1 << 30)}
	_, err = s.Dynamic.Resource(contents).UpdateStatus(s.ctx, content, metav1.UpdateOptions{})
	s.must(err)
	made.Object["status"] = map[string]any{"boundVolumeSnapshotContentName": s.name, "readyToUse": true, "restoreSize": "1Gi"}
	_, err = all.UpdateStatus(s.ctx, made, metav1.UpdateOptions{})
	s.must(err)
}

func (s *scene) object(kind string, content map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: content}
	o.SetAPIVersion(snapshotGroup + "/v1")
	o.SetKind(kind)
	o.SetName(s.name)
	return o
}

// snapshotID is the driver's for the scene's snapshot.
func (s *scene) snapshotID() string { return state.SnapshotID(s.name) }

// fromSnapshot makes a claim ask for a copy of the scene's snapshot.
func (s *scene) fromSnapshot(c *v1.PersistentVolumeClaim) {
	group := snapshotGroup
	c.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: s.name}
}

// clone makes a claim ask for a copy of another.
func clone(of string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: of}
	}
}

// theSnapshot is the scene's VolumeSnapshot, nil when it is gone.
func (s *scene) theSnapshot() *unstructured.Unstructured {
	s.t.Helper()
	found, err := s.Dynamic.Resource(snapshots).Namespace(rig.Namespace).Get(s.ctx, s.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.must(err)
	return found
}

// deleteSnapshot asks for its end.
func (s *scene) deleteSnapshot() {
	s.t.Helper()
	s.must(s.Dynamic.Resource(snapshots).Namespace(rig.Namespace).Delete(s.ctx, s.name, metav1.DeleteOptions{}))
}

func (s *scene) snapshotGone() {
	s.t.Helper()
	s.await("the VolumeSnapshot is gone", func() bool { return s.theSnapshot() == nil })
}
