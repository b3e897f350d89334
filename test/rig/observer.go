package rig

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
)

// Change is one thing that the observer saw.
type Change struct {
	At time.Time
	// Verb is added, updated or deleted.
	Verb     string
	Old, New any
}

// Observer watches pods, claims, PersistentVolumes, VolumeAttachments, nodes,
// CSINodes and events as an administrator, keeps every change in order, and wakes those who wait.
type Observer struct {
	factory informers.SharedInformerFactory
	cancel  context.CancelFunc

	mu      sync.Mutex
	changes []Change
	wake    chan struct{}
}

func newObserver(ctx context.Context, client kubernetes.Interface) (*Observer, error) {
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	o := &Observer{factory: informers.NewSharedInformerFactory(client, 0), cancel: cancel, wake: make(chan struct{})}
	core := o.factory.Core().V1()
	for _, inf := range []cache.SharedIndexInformer{
		core.Pods().Informer(), core.Nodes().Informer(), core.Events().Informer(), core.PersistentVolumeClaims().Informer(),
		core.PersistentVolumes().Informer(),
		o.factory.Storage().V1().VolumeAttachments().Informer(), o.factory.Storage().V1().CSINodes().Informer(),
	} {
		if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { o.note("added", nil, obj) },
			UpdateFunc: func(old, obj any) { o.note("updated", old, obj) },
			DeleteFunc: func(obj any) { o.note("deleted", obj, nil) },
		}); err != nil {
			cancel()
			return nil, err
		}
	}
	o.factory.Start(watching.Done())
	for kind, ok := range o.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			cancel()
			return nil, fmt.Errorf("watching %v: %w", kind, ctx.Err())
		}
	}
	return o, nil
}

func (o *Observer) note(verb string, old, obj any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.changes = append(o.changes, Change{At: time.Now(), Verb: verb, Old: old, New: obj})
	close(o.wake)
	o.wake = make(chan struct{})
}

func (o *Observer) stop() {
	o.cancel()
	o.factory.Shutdown()
}

// Changes returns what was seen so far.
func (o *Observer) Changes() []Change {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]Change(nil), o.changes...)
}

// First is when the first change at or after since fulfilled match.
func (o *Observer) First(since time.Time, match func(Change) bool) (time.Time, bool) {
	for _, c := range o.Changes() {
		if !c.At.Before(since) && match(c) {
			return c.At, true
		}
	}
	return time.Time{}, false
}

// pollEvery is how often a condition is looked at that no watch tells of, such
// as a file.
const pollEvery = 25 * time.Millisecond

// Await waits until the condition holds, looking again after each change that
// the observer sees and every 25 ms.
func (r *Rig) Await(ctx context.Context, what string, holds func() bool) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		r.Observer.mu.Lock()
		wake := r.Observer.wake
		r.Observer.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-wake:
		case <-ticker.C:
		case <-r.Cluster.Done():
			return fmt.Errorf("waiting until %s: the control plane ended: %w", what, r.Cluster.Err())
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, context.Cause(ctx))
		}
	}
}

// AwaitNodeReady waits until the scheduler may use the node for the driver's
// volumes: it is Ready, kube-controller-manager took off the taint of a node that
// is not, and its CSINode names the driver.
func (r *Rig) AwaitNodeReady(ctx context.Context, name string) error {
	return r.Await(ctx, "node "+name+" is ready", func() bool {
		node, err := r.Observer.factory.Core().V1().Nodes().Lister().Get(name)
		if err != nil || !kube.NodeReady(node) || slices.ContainsFunc(node.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeNotReady }) {
			return false
		}
		csiNode, err := r.Observer.factory.Storage().V1().CSINodes().Lister().Get(name)
		return err == nil && slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == Driver })
	})
}

// Pod is the observer's view of a pod, nil when there is none.
func (r *Rig) Pod(namespace, name string) *v1.Pod {
	pod, err := r.Observer.factory.Core().V1().Pods().Lister().Pods(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pod
}

// Claim is the observer's view of a PersistentVolumeClaim, nil when there is
// none.
func (r *Rig) Claim(namespace, name string) *v1.PersistentVolumeClaim {
	claim, err := r.Observer.factory.Core().V1().PersistentVolumeClaims().Lister().PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return nil
	}
	return claim
}

// PV is the observer's view of a PersistentVolume, nil when there is none.
func (r *Rig) PV(name string) *v1.PersistentVolume {
	pv, err := r.Observer.factory.Core().V1().PersistentVolumes().Lister().Get(name)
	if err != nil {
		return nil
	}
	return pv
}

// Node is the observer's view of a node, nil when there is none.
func (r *Rig) Node(name string) *v1.Node {
	node, err := r.Observer.factory.Core().V1().Nodes().Lister().Get(name)
	if err != nil {
		return nil
	}
	return node
}

// Attachment is the VolumeAttachment of a PersistentVolume on a node, nil when
// there is none.
func (r *Rig) Attachment(pv, node string) *storagev1.VolumeAttachment {
	for _, obj := range r.Observer.factory.Storage().V1().VolumeAttachments().Informer().GetStore().List() {
		va := obj.(*storagev1.VolumeAttachment)
		if va.Spec.NodeName == node && va.Spec.Source.PersistentVolumeName != nil && *va.Spec.Source.PersistentVolumeName == pv {
			return va
		}
	}
	return nil
}

// AttachmentNamed is the observer's view of a VolumeAttachment, nil when there is
// none.
func (r *Rig) AttachmentNamed(name string) *storagev1.VolumeAttachment {
	va, err := r.Observer.factory.Storage().V1().VolumeAttachments().Lister().Get(name)
	if err != nil {
		return nil
	}
	return va
}

// EventsOf are all events with that reason.
func (r *Rig) EventsOf(reason string) (found []*v1.Event) {
	for _, obj := range r.Observer.factory.Core().V1().Events().Informer().GetStore().List() {
		if e := obj.(*v1.Event); e.Reason == reason {
			found = append(found, e)
		}
	}
	return found
}

// Events are the events about an object, by name, with one of the reasons.
func (r *Rig) Events(name string, reasons ...string) (found []*v1.Event) {
	for _, obj := range r.Observer.factory.Core().V1().Events().Informer().GetStore().List() {
		e := obj.(*v1.Event)
		if e.InvolvedObject.Name != name {
			continue
		}
		for _, reason := range reasons {
			if e.Reason == reason {
				found = append(found, e)
			}
		}
	}
	return found
}
