package provisioner

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// synced are the informers that Run waits for.
func (ctrl *ProvisionController) synced() []cache.InformerSynced {
	synced := []cache.InformerSynced{ctrl.claimInformer.HasSynced, ctrl.volumeInformer.HasSynced, ctrl.classInformer.HasSynced}
	if ctrl.guardAttached {
		synced = append(synced, ctrl.attachmentInformer.HasSynced)
	}
	return append(synced, ctrl.beside...)
}

// ownRecorder makes a recorder; the result ends it.
func (ctrl *ProvisionController) ownRecorder(ctx context.Context) func() {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: ctrl.client.CoreV1().Events("")})
	ctrl.recorder = b.NewRecorder(scheme.Scheme, v1.EventSource{Component: ctrl.component()})
	return b.Shutdown
}

// subscribe registers the handlers; the result takes them back.
func (ctrl *ProvisionController) subscribe() (unsubscribe func(), err error) {
	var undo []func()
	add := func(inf cache.SharedIndexInformer, h cache.ResourceEventHandler) {
		if err != nil {
			return
		}
		var reg cache.ResourceEventHandlerRegistration
		if reg, err = inf.AddEventHandler(h); err == nil {
			undo = append(undo, func() { _ = inf.RemoveEventHandler(reg) }) // fails only for a foreign registration
		}
	}
	add(ctrl.claimInformer, handlers(ctrl.onClaim, ctrl.onClaimGone))
	add(ctrl.volumeInformer, handlers(ctrl.onVolume, ctrl.onVolumeGone))
	add(ctrl.classInformer, later{handlers(func(was, is *storagev1.StorageClass) {
		if was == nil || was.ResourceVersion != is.ResourceVersion {
			ctrl.onClass(is.Name)
		}
	}, func(*storagev1.StorageClass) {})})
	if ctrl.guardAttached {
		add(ctrl.attachmentInformer, handlers(func(_, _ *storagev1.VolumeAttachment) {}, ctrl.onAttachmentGone))
	}
	return func() {
		for _, f := range undo {
			f()
		}
	}, err
}

// later leaves out the objects that were there at the start: those that wait for
// one of them are there as well, and come themselves.
type later struct {
	cache.ResourceEventHandlerFuncs
}

// OnAdd implements cache.ResourceEventHandler.
func (l later) OnAdd(obj any, inInitialList bool) {
	if !inInitialList {
		l.ResourceEventHandlerFuncs.OnAdd(obj, false)
	}
}

// handlers are event handlers for objects of one type. was is nil for one that
// was added. An informer that missed a deletion tells of the next object of that
// name as of a change.
func handlers[T any](set func(was, is *T), gone func(*T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if is, ok := obj.(*T); ok {
				set(nil, is)
			}
		},
		UpdateFunc: func(old, obj any) {
			was, wasT := old.(*T)
			is, isT := obj.(*T)
			switch {
			case !wasT || !isT:
			case uidOf(old) != uidOf(obj):
				gone(was)
				set(nil, is)
			default:
				set(was, is)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			if was, ok := obj.(*T); ok {
				gone(was)
			}
		},
	}
}

func uidOf(obj any) types.UID {
	if m, ok := obj.(metav1.Object); ok {
		return m.GetUID()
	}
	return ""
}
