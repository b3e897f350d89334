package provisioner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// patchTries bounds how often a patch is made again since somebody else changed
// the finalizers meanwhile: there are two or three who do.
const patchTries = 10

// operation6902 is one step of a JSON patch (RFC 6902).
type operation6902 struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// putFinalizer adds our finalizer to a PersistentVolume that has a volume to
// delete.
func (ctrl *ProvisionController) putFinalizer(ctx context.Context, pv *v1.PersistentVolume) error {
	return ctrl.changeFinalizers(ctx, pv, func(pv *v1.PersistentVolume) []operation6902 {
		switch {
		case hasFinalizer(pv) || pv.DeletionTimestamp != nil:
			return nil
		case len(pv.Finalizers) == 0:
			// There is no list to add to, and one that came meanwhile must stay.
			return []operation6902{
				{Op: "test", Path: "/metadata/finalizers", Value: json.RawMessage("null")},
				{Op: "add", Path: "/metadata/finalizers", Value: []string{Finalizer}},
			}
		default:
			return []operation6902{
				{Op: "test", Path: "/metadata/finalizers", Value: pv.Finalizers},
				{Op: "add", Path: "/metadata/finalizers/-", Value: Finalizer},
			}
		}
	})
}

// takeFinalizer takes our finalizer off. The list is compared by place, so that
// what others take off meanwhile shows.
func (ctrl *ProvisionController) takeFinalizer(ctx context.Context, pv *v1.PersistentVolume) error {
	return ctrl.changeFinalizers(ctx, pv, func(pv *v1.PersistentVolume) []operation6902 {
		i := slices.Index(pv.Finalizers, Finalizer)
		if i < 0 {
			return nil
		}
		path := fmt.Sprintf("/metadata/finalizers/%d", i)
		return []operation6902{{Op: "test", Path: path, Value: Finalizer}, {Op: "remove", Path: path}}
	})
}

// changeFinalizers patches a PersistentVolume, bound to its UID and to what the
// change was made from. Where that has changed meanwhile, it is read again.
func (ctrl *ProvisionController) changeFinalizers(ctx context.Context, pv *v1.PersistentVolume, change func(*v1.PersistentVolume) []operation6902) error {
	uid := pv.UID
	var err error
	for range patchTries {
		steps := change(pv)
		if steps == nil {
			return nil
		}
		if err = ctrl.patchPV(ctx, pv.Name, append([]operation6902{{Op: "test", Path: "/metadata/uid", Value: uid}}, steps...)); err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
			break
		}
		live, readErr := ctrl.livePV(ctx, pv.Name)
		if readErr != nil {
			return readErr
		}
		if live == nil || live.UID != uid {
			return nil
		}
		pv = live
	}
	err = fmt.Errorf("changing the finalizers of PersistentVolume %s: %w", pv.Name, allow(err, "patch of persistentvolumes"))
	ctrl.recorder.Event(pv, v1.EventTypeWarning, ReasonVolumeFailedDelete, err.Error())
	return err
}

// allow adds to an error what is to be allowed, where that is what is wrong.
func allow(err error, what string) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; allow %s", err, what)
	}
	return err
}

func (ctrl *ProvisionController) patchPV(ctx context.Context, name string, steps []operation6902) error {
	patch, err := json.Marshal(steps)
	if err != nil {
		return fmt.Errorf("encoding a patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, ctrl.timeout)
	defer cancel()
	_, err = ctrl.client.CoreV1().PersistentVolumes().Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}
