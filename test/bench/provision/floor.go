package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

// floorProvisioner never waits: it creates the PersistentVolume as soon as the
// claim names it the provisioner, and deletes that as soon as it is released. It
// calls no driver, records no event and sets no finalizer. What it reaches is what
// kube-controller-manager and the API server let anybody reach.
type floorProvisioner struct {
	client  kubernetes.Interface
	claims  corelisters.PersistentVolumeClaimLister
	factory informers.SharedInformerFactory
	cancel  context.CancelFunc
	under   sync.WaitGroup

	mu sync.Mutex
	// begun are the claims and the volumes that something is done for, or was.
	begun map[types.UID]bool
	errs  []error
}

func startFloor(ctx context.Context, config *rest.Config) (running, error) {
	client, err := world.Admin(config, floor.name+"/bench")
	if err != nil {
		return nil, err
	}
	return startFloorWith(ctx, client)
}

func startFloorWith(ctx context.Context, client kubernetes.Interface) (running, error) {
	f := &floorProvisioner{client: client, factory: informers.NewSharedInformerFactory(client, 0), begun: map[types.UID]bool{}}
	ctx, f.cancel = context.WithCancel(ctx)
	volumes := f.factory.Core().V1().PersistentVolumes().Informer()
	claims := f.factory.Core().V1().PersistentVolumeClaims()
	f.claims = claims.Lister()
	_, err := claims.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.claim(ctx, o.(*v1.PersistentVolumeClaim)) },
		UpdateFunc: func(_, o any) { f.claim(ctx, o.(*v1.PersistentVolumeClaim)) },
	})
	_, failed := volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.volume(ctx, o.(*v1.PersistentVolume)) },
		UpdateFunc: func(_, o any) { f.volume(ctx, o.(*v1.PersistentVolume)) },
		DeleteFunc: func(o any) { f.deleted(ctx, o) },
	})
	if err := errors.Join(err, failed); err != nil {
		return nil, errors.Join(err, f.stop())
	}
	f.factory.StartWithContext(ctx)
	for kind, synced := range f.factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return nil, errors.Join(fmt.Errorf("the cache of %v does not fill", kind), context.Cause(ctx), f.stop())
		}
	}
	return f, nil
}

// memory is that of the bench, and nothing to compare with.
func (f *floorProvisioner) memory() (usage.Memory, error) { return usage.Memory{}, nil }

func (f *floorProvisioner) stop() error {
	f.cancel()
	f.factory.Shutdown()
	f.under.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.errs...)
}

// once does something for an object unless it was begun before, side by side with
// all else.
func (f *floorProvisioner) once(ctx context.Context, uid types.UID, do func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun[uid] {
		return
	}
	f.begun[uid] = true
	f.under.Go(func() {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.errs = append(f.errs, err)
		}
	})
}

// claim provisions for a claim that waits for this driver.
func (f *floorProvisioner) claim(ctx context.Context, c *v1.PersistentVolumeClaim) {
	if c.Spec.VolumeName != "" || c.DeletionTimestamp != nil || c.Annotations["volume.kubernetes.io/storage-provisioner"] != driverName {
		return
	}
	f.once(ctx, c.UID, func(ctx context.Context) error {
		_, err := f.client.CoreV1().PersistentVolumes().Create(ctx, volumeFor(c, time.Now()), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// volume deletes one that is released.
func (f *floorProvisioner) volume(ctx context.Context, v *v1.PersistentVolume) {
	if v.Status.Phase != v1.VolumeReleased || v.DeletionTimestamp != nil {
		return
	}
	f.once(ctx, v.UID, func(ctx context.Context) error {
		err := f.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// deleted provisions anew for a claim that is still there: kube-controller-manager
// releases a volume whose claim it has not seen yet.
func (f *floorProvisioner) deleted(ctx context.Context, o any) {
	if tombstone, is := o.(cache.DeletedFinalStateUnknown); is {
		o = tombstone.Obj
	}
	v, is := o.(*v1.PersistentVolume)
	if !is || v.Spec.ClaimRef == nil {
		return
	}
	f.mu.Lock()
	delete(f.begun, v.Spec.ClaimRef.UID)
	f.mu.Unlock()
	if c, err := f.claims.PersistentVolumeClaims(v.Spec.ClaimRef.Namespace).Get(v.Spec.ClaimRef.Name); err == nil && c.UID == v.Spec.ClaimRef.UID {
		f.claim(ctx, c)
	}
}
