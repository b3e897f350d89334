package capacity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

func quantity(bytes int64) *resource.Quantity { return resource.NewQuantity(bytes, resource.BinarySI) }

// publish writes what the driver said, if the object says something else.
func (c *Controller) publish(ctx context.Context, it item, object *storagev1.CSIStorageCapacity, room room) error {
	if object == nil {
		return c.create(ctx, it, room)
	}
	owned := c.cfg.Owner == nil || slices.ContainsFunc(object.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == c.cfg.Owner.UID })
	if owned && says(object, room) {
		return nil
	}
	return c.patch(ctx, object, room, owned)
}

// says reports whether the object tells just that.
func says(object *storagev1.CSIStorageCapacity, room room) bool {
	if object.Capacity == nil || object.Capacity.Cmp(*quantity(room.available)) != 0 {
		return false
	}
	if object.MaximumVolumeSize == nil || room.largest == nil {
		return object.MaximumVolumeSize == nil && room.largest == nil
	}
	return object.MaximumVolumeSize.Cmp(*quantity(*room.largest)) == 0
}

func (c *Controller) create(ctx context.Context, it item, room room) error {
	object := &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{GenerateName: namePrefix, Namespace: c.cfg.Namespace, Labels: c.cfg.ourLabels()},
		NodeTopology:     it.segment.NodeSelector(),
		StorageClassName: it.class,
		Capacity:         quantity(room.available),
	}
	if room.largest != nil {
		object.MaximumVolumeSize = quantity(*room.largest)
	}
	if c.cfg.Owner != nil {
		object.OwnerReferences = []metav1.OwnerReference{*c.cfg.Owner}
	}
	var created *storagev1.CSIStorageCapacity
	err := c.write(ctx, "create", func(ctx context.Context) (err error) {
		created, err = c.cfg.Client.StorageV1().CSIStorageCapacities(c.cfg.Namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	c.table.put(created)
	klog.FromContext(ctx).V(2).Info("Created CSIStorageCapacity", "name", created.Name, "bytes", room.available)
	return nil
}

// patch writes into an object if it is still the one that was seen. An owner that
// is not ours is replaced: the objects were another's before.
func (c *Controller) patch(ctx context.Context, object *storagev1.CSIStorageCapacity, room room, owned bool) error {
	metadata := map[string]any{"uid": object.UID, "resourceVersion": object.ResourceVersion}
	if !owned {
		metadata["ownerReferences"] = []metav1.OwnerReference{*c.cfg.Owner}
	}
	body := map[string]any{"metadata": metadata, "capacity": quantity(room.available), "maximumVolumeSize": nil}
	if room.largest != nil {
		body["maximumVolumeSize"] = quantity(*room.largest)
	}
	patch, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("writing a patch of CSIStorageCapacity %s/%s: %w", object.Namespace, object.Name, err)
	}
	var patched *storagev1.CSIStorageCapacity
	err = c.write(ctx, "patch", func(ctx context.Context) (err error) {
		patched, err = c.cfg.Client.StorageV1().CSIStorageCapacities(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		c.table.remove(object.UID) // the next look makes another
	}
	if err != nil {
		return fmt.Errorf("CSIStorageCapacity %s: %w", object.Name, err)
	}
	c.table.put(patched)
	klog.FromContext(ctx).V(2).Info("Changed CSIStorageCapacity", "name", patched.Name, "bytes", room.available)
	return nil
}

// deleteAll deletes objects as they were seen: one that somebody has changed since
// is looked at again.
func (c *Controller) deleteAll(ctx context.Context, objects []*storagev1.CSIStorageCapacity) error {
	var errs []error
	for _, object := range objects {
		if wait := c.access.rest("delete"); wait > 0 {
			return &resting{"delete", wait}
		}
		err := c.write(ctx, "delete", func(ctx context.Context) error {
			return c.cfg.Client.StorageV1().CSIStorageCapacities(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion},
			})
		})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("CSIStorageCapacity %s: %w", object.Name, err))
			continue
		}
		c.table.remove(object.UID)
		klog.FromContext(ctx).V(2).Info("Deleted CSIStorageCapacity that nobody needs", "name", object.Name)
	}
	return errors.Join(errs...)
}

// write makes a request to write, and takes its result to account.
func (c *Controller) write(ctx context.Context, verb string, request func(context.Context) error) error {
	if !c.cfg.IsLeader() {
		return errNotLeader
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	err := request(ctx)
	c.metrics.wrote(verb, err)
	if c.access.saw(verb, err) {
		return errors.Join(&resting{verb, c.access.rest(verb)}, err)
	}
	if err != nil {
		return fmt.Errorf("trying to %s a CSIStorageCapacity in namespace %s: %w", verb, c.cfg.Namespace, err)
	}
	return nil
}
