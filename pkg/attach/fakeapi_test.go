package attach

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var (
	vaResource      = storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	pvResource      = v1.SchemeGroupVersion.WithResource("persistentvolumes")
	nodeResource    = v1.SchemeGroupVersion.WithResource("nodes")
	csiNodeResource = storagev1.SchemeGroupVersion.WithResource("csinodes")
)

// fakeAPI is client-go's fake with what matters here of a real API server:
// resource versions, preconditions of a patch, the status as a subresource, and
// deletion that waits for finalizers.
type fakeAPI struct {
	*fake.Clientset

	mu      sync.Mutex
	version int
	// fault may fail a patch: before it is done, or after, with its answer lost.
	fault func(resource, subresource string) (before, after error)
	// patches counts patches by resource and subresource.
	patches map[string]int
}

func newFakeAPI(objs ...runtime.Object) *fakeAPI {
	a := &fakeAPI{Clientset: fake.NewClientset(), patches: map[string]int{}, version: 1}
	a.PrependReactor("patch", "*", a.patch)
	a.PrependReactor("get", "volumeattachments", a.get)
	for _, o := range objs {
		a.add(o)
	}
	return a
}

// get leaves out the fake's own idea of who has written what: it knows nobody.
func (a *fakeAPI) get(action clienttesting.Action) (bool, runtime.Object, error) {
	obj, err := a.Tracker().Get(vaResource, "", action.(clienttesting.GetAction).GetName())
	if err != nil {
		return true, nil, err
	}
	va := obj.(*storagev1.VolumeAttachment).DeepCopy()
	va.ManagedFields = nil
	return true, va, nil
}

func resourceOf(obj runtime.Object) schema.GroupVersionResource {
	switch obj.(type) {
	case *storagev1.VolumeAttachment:
		return vaResource
	case *v1.PersistentVolume:
		return pvResource
	case *v1.Node:
		return nodeResource
	case *storagev1.CSINode:
		return csiNodeResource
	default:
		return v1.SchemeGroupVersion.WithResource("secrets")
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func (a *fakeAPI) bump(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	must(err)
	a.version++
	m.SetResourceVersion(strconv.Itoa(a.version))
	return m
}

// add creates an object.
func (a *fakeAPI) add(obj runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.bump(obj)
	if m.GetUID() == "" {
		m.SetUID(types.UID(fmt.Sprintf("uid-%d", a.version)))
	}
	must(a.Tracker().Create(resourceOf(obj), obj, m.GetNamespace()))
}

// remove deletes an object as the API does: with finalizers it is only marked.
func (a *fakeAPI) remove(gvr schema.GroupVersionResource, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj, err := a.Tracker().Get(gvr, "", name)
	if apierrors.IsNotFound(err) {
		return
	}
	must(err)
	obj = obj.DeepCopyObject()
	m := a.bump(obj)
	if len(m.GetFinalizers()) == 0 {
		must(a.Tracker().Delete(gvr, "", name))
		return
	}
	if m.GetDeletionTimestamp() == nil {
		now := metav1.Now()
		m.SetDeletionTimestamp(&now)
		must(a.Tracker().Update(gvr, obj, ""))
	}
}

// change edits an object behind the controller's back.
func (a *fakeAPI) change(gvr schema.GroupVersionResource, name string, f func(runtime.Object)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj, err := a.Tracker().Get(gvr, "", name)
	must(err)
	obj = obj.DeepCopyObject()
	f(obj)
	a.store(gvr, obj)
}

func (a *fakeAPI) store(gvr schema.GroupVersionResource, obj runtime.Object) {
	m := a.bump(obj)
	if m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 {
		must(a.Tracker().Delete(gvr, "", m.GetName()))
		return
	}
	must(a.Tracker().Update(gvr, obj, ""))
}

func (a *fakeAPI) va(name string) *storagev1.VolumeAttachment {
	obj, err := a.Tracker().Get(vaResource, "", name)
	if err != nil {
		return nil
	}
	return obj.(*storagev1.VolumeAttachment).DeepCopy()
}

func (a *fakeAPI) pv(name string) *v1.PersistentVolume {
	obj, err := a.Tracker().Get(pvResource, "", name)
	if err != nil {
		return nil
	}
	return obj.(*v1.PersistentVolume).DeepCopy()
}

func (a *fakeAPI) setFault(f func(resource, subresource string) (before, after error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = f
}

func (a *fakeAPI) patched(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.patches[what]
}

// patch serves a merge patch.
func (a *fakeAPI) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	p := action.(clienttesting.PatchAction)
	gvr, name := p.GetResource(), p.GetName()
	a.mu.Lock()
	defer a.mu.Unlock()
	var before, after error
	if a.fault != nil {
		before, after = a.fault(gvr.Resource, p.GetSubresource())
	}
	if before != nil {
		return true, nil, before
	}
	a.patches[gvr.Resource+"/"+p.GetSubresource()]++
	obj, err := a.Tracker().Get(gvr, "", name)
	if err != nil {
		return true, nil, err
	}
	m, err := meta.Accessor(obj)
	must(err)
	var body map[string]any
	must(json.Unmarshal(p.GetPatch(), &body))
	head := body["metadata"].(map[string]any)
	if uid, ok := head["uid"]; ok && uid != string(m.GetUID()) {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), name, fmt.Errorf("UID in precondition: %v, in object: %v", uid, m.GetUID()))
	}
	if rv, ok := head["resourceVersion"]; ok && rv != m.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), name, fmt.Errorf("the object has been modified"))
	}
	if p.GetSubresource() == "status" {
		body = map[string]any{"status": body["status"]}
	} else {
		delete(body, "status")
	}
	got, err := merged(obj, body)
	if err != nil {
		return true, nil, err
	}
	if va, ok := got.(*storagev1.VolumeAttachment); ok {
		for _, e := range []*storagev1.VolumeError{va.Status.AttachError, va.Status.DetachError} {
			if e != nil && len(e.Message) > maxMessage {
				return true, nil, apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment").GroupKind(), name, nil)
			}
		}
	}
	a.store(gvr, got)
	if after != nil {
		return true, nil, after
	}
	return true, got.DeepCopyObject(), nil
}

// merged applies a merge patch (RFC 7396).
func merged(obj runtime.Object, patch map[string]any) (runtime.Object, error) {
	b, err := json.Marshal(obj)
	must(err)
	var doc map[string]any
	must(json.Unmarshal(b, &doc))
	merge(doc, patch)
	b, err = json.Marshal(doc)
	must(err)
	var out runtime.Object = &storagev1.VolumeAttachment{}
	if _, ok := obj.(*v1.PersistentVolume); ok {
		out = &v1.PersistentVolume{}
	}
	return out, json.Unmarshal(b, out)
}

func merge(doc, patch map[string]any) {
	for k, v := range patch {
		sub, isMap := v.(map[string]any)
		switch {
		case v == nil:
			delete(doc, k)
		case isMap:
			inner, ok := doc[k].(map[string]any)
			if !ok {
				inner = map[string]any{}
				doc[k] = inner
			}
			merge(inner, sub)
		default:
			doc[k] = v
		}
	}
}
