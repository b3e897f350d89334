package source

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// conflictsTolerated is how often an update is tried again at once after
// somebody else was faster. Each time the object is read again.
const conflictsTolerated = 5

// writeError is an update that failed, rather than a read.
type writeError struct {
	of  key
	err error
}

func (e *writeError) Error() string {
	text := "updating the finalizers of " + e.of.String() + ": " + e.err.Error()
	if apierrors.IsForbidden(e.err) {
		text += "; grant the sidecar's ServiceAccount update on " + e.of.resource().GroupResource().String()
	}
	return text
}
func (e *writeError) Unwrap() error { return e.err }

// Protect puts the finalizer on the source that user, by its UID, is about to
// have a volume made of. Until Release for the same user it does not come off.
// It is to be called before CreateVolume, and is nil once the source is protected:
// read live, it is there, the one that was resolved, and not about to go.
//
// Where VolumeSnapshots may not be updated it returns an *Unprotected: the source
// is held, and its volume may be made, as external-provisioner does, for the
// permission is an optional one. After any other error the source must be resolved
// again; it is held only if it was before.
func (p *Protection) Protect(ctx context.Context, ref Ref, user types.UID) error {
	k := ref.key()
	fresh, err := p.holds.add(ctx, k, user)
	if err != nil {
		return fmt.Errorf("protecting %s: %w", ref, err)
	}
	err = p.edit(ctx, k, func(obj *unstructured.Unstructured) (bool, error) {
		return protect(ref, obj)
	})
	var w *writeError
	if k.kind == Snapshot && errors.As(err, &w) && apierrors.IsForbidden(err) {
		p.warn(ctx, err)
		return &Unprotected{Err: err}
	}
	if err != nil {
		if fresh {
			p.Release(ref, user)
		}
		return fmt.Errorf("protecting %s: %w", ref, err)
	}
	return nil
}

// warn says once that snapshots are not protected, and again after it was better.
func (p *Protection) warn(ctx context.Context, err error) {
	if !p.warned.Swap(true) {
		klog.FromContext(ctx).Error(err, "Volumes are made of VolumeSnapshots that may be deleted meanwhile")
	}
}

// protect adds the finalizer to the object, if it is the one and stays for now.
func protect(ref Ref, obj *unstructured.Unstructured) (changed bool, err error) {
	if obj.GetUID() != ref.UID {
		return false, fmt.Errorf("it was made anew since (UID %s, was %s)", obj.GetUID(), ref.UID)
	}
	finalizers := obj.GetFinalizers()
	if slices.Contains(finalizers, ref.key().finalizer()) {
		return false, nil
	}
	if obj.GetDeletionTimestamp() != nil {
		return false, errors.New("it is being deleted")
	}
	obj.SetFinalizers(append(finalizers, ref.key().finalizer()))
	return true, nil
}

// edit reads an object, has it changed, and writes it if it was.
func (p *Protection) edit(ctx context.Context, k key, change func(*unstructured.Unstructured) (bool, error)) error {
	for range conflictsTolerated {
		obj, err := p.live.get(ctx, k.resource(), k.namespace, k.name)
		if err != nil {
			return readError(err, k.String(), k.resource().GroupResource())
		}
		changed, err := change(obj)
		if err != nil || !changed {
			return err
		}
		if !p.cfg.IsLeader() {
			return errNotLeader
		}
		err = p.live.update(ctx, k, obj)
		if err == nil {
			if k.kind == Snapshot {
				p.warned.Store(false)
			}
			return nil
		}
		if !apierrors.IsConflict(err) {
			return &writeError{k, err}
		}
	}
	return fmt.Errorf("others changed %s %d times while its finalizers were to be updated", k, conflictsTolerated)
}
