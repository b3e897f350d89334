package provisioner

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// reschedule takes the selected node off a claim, so that the scheduler chooses
// again. A choice that has changed meanwhile stays. Where the role allows only
// updates, as upstream's does, it is an update.
func (ctrl *ProvisionController) reschedule(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	key := AnnotationSelectedNode
	node, ok := claim.Annotations[key]
	if !ok {
		key = annotationAlphaSelectedNode
		if node, ok = claim.Annotations[key]; !ok {
			return nil
		}
	}
	path := "/metadata/annotations/" + strings.ReplaceAll(key, "/", "~1")
	patch, err := json.Marshal([]operation6902{
		{Op: "test", Path: "/metadata/uid", Value: claim.UID}, {Op: "test", Path: path, Value: node}, {Op: "remove", Path: path},
	})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, ctrl.timeout)
	defer cancel()
	claims := ctrl.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	_, err = claims.Patch(ctx, claim.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if apierrors.IsForbidden(err) {
		err = ctrl.rescheduleByUpdate(ctx, claim, key, node)
	}
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("The scheduler is asked for another node", "was", node)
		return nil
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		return nil // it is gone, or the choice has changed
	default:
		return fmt.Errorf("taking the selected node %s off claim %s/%s: %w", node, claim.Namespace, claim.Name, allow(err, "patch or update of persistentvolumeclaims"))
	}
}

// rescheduleByUpdate is for who may update, and not patch. A write of somebody
// else comes between now and then.
func (ctrl *ProvisionController) rescheduleByUpdate(ctx context.Context, claim *v1.PersistentVolumeClaim, key, node string) error {
	var err error
	for range patchTries {
		live, readErr := ctrl.liveClaim(ctx, claim.Namespace, claim.Name, claim.UID)
		if readErr != nil || live == nil || live.Annotations[key] != node {
			return readErr
		}
		live = live.DeepCopy()
		delete(live.Annotations, key)
		_, err = ctrl.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, live, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			break
		}
	}
	return err
}
