package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// errNotLeader: the lease has run out. Nothing is written or called any more.
var errNotLeader = errors.New("no longer the leader")

type object = map[string]any

// mayAct is asked before each write and each CSI call.
func (c *Controller) mayAct() error {
	if !c.cfg.IsLeader() {
		return errNotLeader
	}
	return nil
}

// patchVA sends a merge patch of a VolumeAttachment, bound to its UID and, if
// exact, to the very version that the decision was made by; another one is a
// conflict. Lists are replaced whole by a merge patch, so that patches of
// finalizers must be exact. The answer goes to the ledger.
func (c *Controller) patchVA(ctx context.Context, va *storagev1.VolumeAttachment, exact bool, meta object, status object, subresources ...string) (*storagev1.VolumeAttachment, error) {
	if err := c.mayAct(); err != nil {
		return nil, err
	}
	if meta == nil {
		meta = object{}
	}
	meta["uid"] = va.UID
	if exact {
		meta["resourceVersion"] = va.ResourceVersion
	}
	patch := object{"metadata": meta}
	if status != nil {
		patch["status"] = status
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	got, err := c.cfg.Client.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager}, subresources...)
	if err != nil {
		return nil, err
	}
	c.ledger.observeWrite(got)
	return got, nil
}

// writeIntent puts finalizer, node ID and handle on the VolumeAttachment in one
// write. That it succeeds proves that the version decided by is the live one:
// not being deleted, not fenced.
func (c *Controller) writeIntent(ctx context.Context, va *storagev1.VolumeAttachment, nodeID string, handle volume.Handle) (*storagev1.VolumeAttachment, error) {
	meta := object{"annotations": object{volume.AnnotationNodeID: nodeID, AnnotationHandle: handle}}
	had := hasFinalizer(va.Finalizers, c.finalizer)
	if !had {
		meta["finalizers"] = append(append([]string{}, va.Finalizers...), c.finalizer)
	}
	c.ledger.setIntent(va.UID, true)
	got, err := c.patchVA(ctx, va, true, meta, nil)
	if err != nil {
		if !had && refusedWrite(err) {
			c.ledger.setIntent(va.UID, false)
			c.suspect(va) // whoever was faster
		}
		return nil, fmt.Errorf("writing finalizer and node ID: %w", err)
	}
	return got, nil
}

// refusedWrite reports whether an error proves that the write did not happen.
func refusedWrite(err error) bool {
	return errors.Is(err, errNotLeader) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) ||
		apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

func (c *Controller) hasIntent(va *storagev1.VolumeAttachment, nodeID string, handle volume.Handle) bool {
	return hasFinalizer(va.Finalizers, c.finalizer) && va.Annotations[volume.AnnotationNodeID] == nodeID &&
		va.Annotations[AnnotationHandle] == string(handle)
}

// liveVA reads a VolumeAttachment from the API server, and is NotFound for
// another one of the same name.
func (c *Controller) liveVA(ctx context.Context, name string, uid types.UID) (*storagev1.VolumeAttachment, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	va, err := c.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading VolumeAttachment: %w", err)
	}
	if va.UID != uid {
		return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
	}
	c.ledger.observeWrite(va)
	return va, nil
}

// liveHold reads from the API server whether the node's hold names the volume.
// Once a former leader can write no more, what was read is known of the node.
func (c *Controller) liveHold(ctx context.Context, k volume.Key) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	began := c.cfg.Clock.Now()
	node, err := c.cfg.Client.CoreV1().Nodes().Get(ctx, k.Node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading Node %s: %w", k.Node, err)
	}
	if _, held := node.Annotations[volume.HoldKey(c.cfg.DriverName)]; !held {
		c.ledger.noHold(k.Node, began)
	}
	return heldOn(node, c.cfg.DriverName, k.Handle), nil
}

// patchPVFinalizers replaces the finalizers of exactly this version.
func (c *Controller) patchPVFinalizers(ctx context.Context, pv *v1.PersistentVolume, finalizers []string) error {
	if err := c.mayAct(); err != nil {
		return err
	}
	body, err := json.Marshal(object{"metadata": object{"uid": pv.UID, "resourceVersion": pv.ResourceVersion, "finalizers": finalizers}})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	_, err = c.cfg.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	return err
}
