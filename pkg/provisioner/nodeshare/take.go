package nodeshare

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// take writes our node into a claim, provided that it is as we know it: a conflict
// tells that it is not. It is a patch, since what we have of the claim may lack
// what informers drop; where the role allows only updates, as upstream's does, the
// whole claim is read first.
func (s *Sharer) take(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion,
		"annotations": map[string]string{provisioner.AnnotationSelectedNode: s.cfg.Node},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	claims := s.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	_, err = claims.Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) {
		return err
	}
	live, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if live.UID != claim.UID || live.ResourceVersion != claim.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumeclaims"}, claim.Name, fmt.Errorf("it has changed"))
	}
	live = live.DeepCopy()
	metav1.SetMetaDataAnnotation(&live.ObjectMeta, provisioner.AnnotationSelectedNode, s.cfg.Node)
	if _, err = claims.Update(ctx, live, metav1.UpdateOptions{}); apierrors.IsForbidden(err) {
		err = fmt.Errorf("%w; allow patch or update of persistentvolumeclaims", err)
	}
	return err
}
