package capacity

import (
	"context"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
)

// ourLabels are on each of our objects, and on no others.
func (cfg *Config) ourLabels() labels.Set {
	return labels.Set{LabelDriver: cfg.DriverName, LabelManagedBy: cfg.ManagedBy}
}

// isOurs reports whether an object is one that this controller may touch.
func (cfg *Config) isOurs(obj *storagev1.CSIStorageCapacity) bool {
	return obj.Namespace == cfg.Namespace && labels.SelectorFromSet(cfg.ourLabels()).Matches(labels.Set(obj.Labels))
}

// newInformer watches our objects. It is not of the shared factory, since nobody
// else reads them, and since the cluster may not let us: a factory would wait for
// it.
func newInformer(cfg Config, access *access) (cache.SharedIndexInformer, error) {
	api := cfg.Client.StorageV1().CSIStorageCapacities(cfg.Namespace)
	selector := cfg.ourLabels().String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			list, err := api.List(ctx, options)
			access.saw("list", err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			w, err := api.Watch(ctx, options)
			access.saw("watch", err)
			return w, err
		},
	}
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, cfg.Client), &storagev1.CSIStorageCapacity{}, 0, cache.Indexers{})
	if err := informer.SetTransform(kube.Trim); err != nil {
		return nil, fmt.Errorf("setting the transform of the informer for CSIStorageCapacity: %w", err)
	}
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if refused(err) {
			return // access has told of it, once
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	if err != nil {
		return nil, fmt.Errorf("setting the error handler of the informer for CSIStorageCapacity: %w", err)
	}
	return informer, nil
}

// onObject takes an object that there is, and has it seen to if it should not be.
func (c *Controller) onObject(obj any) {
	capacity, ok := obj.(*storagev1.CSIStorageCapacity)
	if !ok || !c.cfg.isOurs(capacity) {
		return
	}
	it, count := c.table.put(capacity)
	if wanted, known := c.goals.wants(it); known && (!wanted || count > 1) {
		c.backlog.add(it)
	}
}

// onObjectGone has an item seen to whose last object has gone.
func (c *Controller) onObjectGone(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	capacity, ok := obj.(*storagev1.CSIStorageCapacity)
	if !ok {
		return
	}
	it, count, known := c.table.remove(capacity.UID)
	if !known {
		// We have deleted it ourselves; the item may be wanted again since.
		it, count = itemOf(capacity), len(c.table.of(itemOf(capacity)))
	}
	if wanted, _ := c.goals.wants(it); wanted && count == 0 {
		c.backlog.add(it)
	}
}

// onClass has the plan made anew if a class of ours comes, changes or goes.
func (c *Controller) onClass(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if class, ok := obj.(*storagev1.StorageClass); !ok || class.Provisioner == c.cfg.DriverName {
		c.poke()
	}
}
