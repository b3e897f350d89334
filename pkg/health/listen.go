package health

import (
	"errors"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// listen has the informers put what changes into the inbox. remove ends that;
// delivered tells when all that the caches held is in the inbox.
func (m *Monitor) listen() (remove func(), delivered []cache.InformerSynced, err error) {
	var undo []func() error
	remove = func() {
		for _, u := range undo {
			// It fails only for a handler of another informer.
			_ = u()
		}
	}
	for k, informer := range m.informers() {
		if k == kindNode {
			continue // Read once, when the loop starts.
		}
		registration, addErr := informer.AddEventHandler(m.handlers(k))
		if addErr != nil {
			err = errors.Join(err, addErr)
			continue
		}
		undo = append(undo, func() error { return informer.RemoveEventHandler(registration) })
		delivered = append(delivered, registration.HasSynced)
	}
	return remove, delivered, err
}

func (m *Monitor) handlers(k kind) cache.ResourceEventHandler {
	put := func(obj any) {
		if meta, ok := obj.(metav1.Object); ok {
			m.inbox.put(item{kind: k, namespace: meta.GetNamespace(), name: meta.GetName()})
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if m.relevant(obj) {
				put(obj)
			}
		},
		UpdateFunc: func(before, after any) {
			if (m.relevant(before) || m.relevant(after)) && !unchanged(before, after) {
				put(after)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			// A pod that says nothing at its end may have said something before.
			if m.relevant(obj) || k == kindPod {
				put(obj)
			}
		},
	}
}

// relevant keeps what does not concern the driver's volumes out of the inbox:
// most pods carry no health status, and most volumes of a big cluster may be
// somebody else's.
func (m *Monitor) relevant(obj any) bool {
	switch o := obj.(type) {
	case *v1.PersistentVolume:
		return o.Spec.CSI != nil && o.Spec.CSI.Driver == m.cfg.DriverName
	case *v1.PersistentVolumeClaim:
		return o.Spec.VolumeName != ""
	case *v1.Pod:
		return len(o.Status.VolumeHealth) > 0
	case *storagev1.VolumeAttachment:
		return o.Spec.Attacher == m.cfg.DriverName
	case *storagev1.CSINode, *coordinationv1.Lease:
		return true
	default:
		return false
	}
}

// unchanged reports whether an update is a resync, which is no news.
func unchanged(before, after any) bool {
	b, okB := before.(metav1.Object)
	a, okA := after.(metav1.Object)
	return okA && okB && b.GetResourceVersion() != "" && b.GetResourceVersion() == a.GetResourceVersion()
}
