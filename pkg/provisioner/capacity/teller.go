package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

// Reasons of events.
const (
	// ReasonRefused: the API server refuses us what we need on CSIStorageCapacity
	// objects, so that the scheduler does not hear of free capacity.
	ReasonRefused = "CapacityRefused"
	// ReasonAllowed: that is over.
	ReasonAllowed = "CapacityAllowed"
)

// Teller tells people by events what the API server refuses us: on the owner of
// the objects or, where they have none, on each class that they are for. What is
// told is told once, to a class that is made later too, until it is over.
type Teller struct {
	cfg      Config
	recorder record.EventRecorder

	mu sync.Mutex
	// refused is what is refused now, nil for nothing.
	refused error
	// told is whom we have told of it, by UID.
	told map[types.UID]*v1.ObjectReference
}

// NewTeller makes a Teller for a Controller of that config; its Report is to be
// the config's. It watches the classes, whose informer the caller starts.
func NewTeller(cfg Config, recorder record.EventRecorder) (*Teller, error) {
	t := &Teller{cfg: cfg, recorder: recorder, told: map[types.UID]*v1.ObjectReference{}}
	if cfg.Owner != nil {
		return t, nil
	}
	_, err := cfg.Classes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    t.onClass,
		UpdateFunc: func(_, obj any) { t.onClass(obj) },
		DeleteFunc: t.onClassGone,
	})
	if err != nil {
		return nil, fmt.Errorf("watching storage classes: %w", err)
	}
	return t, nil
}

// Report takes what is refused now, nil for nothing any more.
func (t *Teller) Report(refused error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = refused
	if refused == nil {
		for _, object := range sorted(t.told) {
			t.recorder.Event(object, v1.EventTypeNormal, ReasonAllowed, "The scheduler is told of free capacity again")
		}
		clear(t.told)
		return
	}
	for _, object := range t.listeners() {
		t.tell(object)
	}
}

// listeners are the objects whose readers care.
func (t *Teller) listeners() []*v1.ObjectReference {
	if o := t.cfg.Owner; o != nil {
		return []*v1.ObjectReference{{APIVersion: o.APIVersion, Kind: o.Kind, Namespace: t.cfg.Namespace, Name: o.Name, UID: o.UID}}
	}
	var all []*v1.ObjectReference
	// Those that the informer does not have yet come by onClass.
	for _, obj := range t.cfg.Classes.Informer().GetStore().List() {
		if class, ok := obj.(*storagev1.StorageClass); ok && t.cfg.counts(class) {
			all = append(all, classRef(class))
		}
	}
	slices.SortFunc(all, byName)
	return all
}

func classRef(class *storagev1.StorageClass) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "StorageClass", Name: class.Name, UID: class.UID}
}

// tell says what is refused. The caller holds mu.
func (t *Teller) tell(object *v1.ObjectReference) {
	t.told[object.UID] = object
	t.recorder.Eventf(object, v1.EventTypeWarning, ReasonRefused, "The scheduler is not told of free capacity: %v", t.refused)
}

// onClass tells a class that has not heard yet.
func (t *Teller) onClass(obj any) {
	class, ok := obj.(*storagev1.StorageClass)
	if !ok || !t.cfg.counts(class) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused != nil && t.told[class.UID] == nil {
		t.tell(classRef(class))
	}
}

func (t *Teller) onClassGone(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if class, ok := obj.(*storagev1.StorageClass); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.told, class.UID)
	}
}

// sorted are the objects by their names.
func sorted(objects map[types.UID]*v1.ObjectReference) []*v1.ObjectReference {
	all := make([]*v1.ObjectReference, 0, len(objects))
	for _, object := range objects {
		all = append(all, object)
	}
	slices.SortFunc(all, byName)
	return all
}

func byName(a, b *v1.ObjectReference) int { return cmp.Compare(a.Name, b.Name) }
