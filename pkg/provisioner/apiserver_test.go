package provisioner

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
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

// api makes client-go's fake do what matters here of a real API server: UIDs,
// resource versions, preconditions, deletion that waits for finalizers, and
// JSON patches whose test fails.
type api struct {
	t  *testing.T
	fk *fake.Clientset

	mu      sync.Mutex
	version int
	// between is called once before the next patch is applied.
	between func()
}

func newAPI(t *testing.T, c *fake.Clientset) *api {
	a := &api{t: t, fk: c}
	for _, res := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		c.PrependReactor("create", res, a.create)
		c.PrependReactor("update", res, a.update)
		c.PrependReactor("patch", res, a.patch)
		c.PrependReactor("delete", res, a.remove)
	}
	return a
}

func resourceOf(obj runtime.Object) schema.GroupVersionResource {
	switch obj.(type) {
	case *v1.PersistentVolumeClaim:
		return v1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	case *v1.PersistentVolume:
		return v1.SchemeGroupVersion.WithResource("persistentvolumes")
	case *storagev1.VolumeAttachment:
		return storagev1.SchemeGroupVersion.WithResource("volumeattachments")
	default:
		return storagev1.SchemeGroupVersion.WithResource("storageclasses")
	}
}

// bump gives an object its next version, and a UID where it has none.
func (a *api) bump(obj runtime.Object) (runtime.Object, metav1.Object) {
	obj = obj.DeepCopyObject()
	m, err := meta.Accessor(obj)
	if err != nil {
		a.t.Error(err)
	}
	a.version++
	m.SetResourceVersion(strconv.Itoa(a.version))
	if m.GetUID() == "" {
		m.SetUID(types.UID(fmt.Sprintf("made-%d", a.version)))
	}
	m.SetManagedFields(nil)
	return obj, m
}

// add creates an object as somebody else.
func (a *api) add(obj runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj, m := a.bump(obj)
	if err := a.fk.Tracker().Create(resourceOf(obj), obj, m.GetNamespace()); err != nil {
		a.t.Error(err)
	}
}

func (a *api) create(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj, m := a.bump(action.(clienttesting.CreateAction).GetObject())
	if err := a.fk.Tracker().Create(action.GetResource(), obj, m.GetNamespace()); err != nil {
		return true, nil, err
	}
	return true, obj, nil
}

// store writes an object; one that is going goes with its last finalizer.
func (a *api) store(gvr schema.GroupVersionResource, obj runtime.Object) (runtime.Object, error) {
	obj, m := a.bump(obj)
	if m.GetDeletionTimestamp() != nil && len(m.GetFinalizers()) == 0 {
		return obj, a.fk.Tracker().Delete(gvr, m.GetNamespace(), m.GetName())
	}
	return obj, a.fk.Tracker().Update(gvr, obj, m.GetNamespace())
}

func (a *api) update(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	obj := action.(clienttesting.UpdateAction).GetObject()
	is, err := meta.Accessor(obj)
	if err != nil {
		return true, nil, err
	}
	old, err := a.fk.Tracker().Get(action.GetResource(), action.GetNamespace(), is.GetName())
	if err != nil {
		return true, nil, err
	}
	if was, _ := meta.Accessor(old); was.GetResourceVersion() != is.GetResourceVersion() || was.GetUID() != is.GetUID() {
		return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), is.GetName(), errors.New("the object has been modified"))
	}
	obj, err = a.store(action.GetResource(), obj)
	return true, obj, err
}

func (a *api) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	between := a.between
	a.between = nil
	a.mu.Unlock()
	if between != nil {
		between()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := action.(clienttesting.PatchAction)
	old, err := a.fk.Tracker().Get(p.GetResource(), p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	steps, err := jsonpatch.DecodePatch(p.GetPatch())
	if err != nil {
		return true, nil, err
	}
	doc, err := json.Marshal(old)
	if err != nil {
		return true, nil, err
	}
	if doc, err = steps.Apply(doc); err != nil {
		return true, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	var obj runtime.Object = &v1.PersistentVolume{}
	if _, ok := old.(*v1.PersistentVolumeClaim); ok {
		obj = &v1.PersistentVolumeClaim{}
	}
	if err := json.Unmarshal(doc, obj); err != nil {
		return true, nil, err
	}
	obj, err = a.store(p.GetResource(), obj)
	return true, obj, err
}

func (a *api) remove(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := action.(clienttesting.DeleteActionImpl)
	old, err := a.fk.Tracker().Get(d.GetResource(), d.GetNamespace(), d.GetName())
	if err != nil {
		return true, nil, err
	}
	m, _ := meta.Accessor(old)
	if pre := d.DeleteOptions.Preconditions; pre != nil && pre.UID != nil && *pre.UID != m.GetUID() {
		return true, nil, apierrors.NewConflict(d.GetResource().GroupResource(), d.GetName(), errors.New("the UID is another"))
	}
	return true, nil, a.delete(d.GetResource(), old)
}

func (a *api) delete(gvr schema.GroupVersionResource, old runtime.Object) error {
	old = old.DeepCopyObject()
	m, _ := meta.Accessor(old)
	if len(m.GetFinalizers()) == 0 {
		return a.fk.Tracker().Delete(gvr, m.GetNamespace(), m.GetName())
	}
	if m.GetDeletionTimestamp() == nil {
		now := metav1.Now()
		m.SetDeletionTimestamp(&now)
	}
	_, err := a.store(gvr, old)
	return err
}

// edit changes an object as somebody else; nil deletes it.
func edit[T runtime.Object](a *api, kind T, name string, f func(T)) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	gvr, namespace := resourceOf(kind), ""
	if _, ok := any(kind).(*v1.PersistentVolumeClaim); ok {
		namespace = "default"
	}
	obj, err := a.fk.Tracker().Get(gvr, namespace, name)
	switch {
	case err != nil:
	case f == nil:
		err = a.delete(gvr, obj)
	default:
		obj = obj.DeepCopyObject()
		f(obj.(T))
		_, err = a.store(gvr, obj)
	}
	if err != nil {
		a.t.Errorf("changing %s: %v", name, err)
	}
}

// The parts of kube-controller-manager and of users.

func (a *api) editClaim(name string, f func(*v1.PersistentVolumeClaim)) {
	a.t.Helper()
	edit(a, &v1.PersistentVolumeClaim{}, name, f)
}

func (a *api) editPV(name string, f func(*v1.PersistentVolume)) {
	a.t.Helper()
	edit(a, &v1.PersistentVolume{}, name, f)
}

func (a *api) dropClaim(name string) {
	a.t.Helper()
	a.editClaim(name, nil)
}

func (a *api) dropPV(name string) {
	a.t.Helper()
	a.editPV(name, nil)
}

func (a *api) dropClass(name string) {
	a.t.Helper()
	edit[*storagev1.StorageClass](a, &storagev1.StorageClass{}, name, nil)
}

func (a *api) dropAttachment(name string) {
	a.t.Helper()
	edit[*storagev1.VolumeAttachment](a, &storagev1.VolumeAttachment{}, name, nil)
}

// bind binds a claim to a PersistentVolume.
func (a *api) bind(claim, pv string) {
	a.t.Helper()
	a.editPV(pv, func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeBound })
	a.editClaim(claim, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName, c.Status.Phase = pv, v1.ClaimBound })
}

// release says that the claim of a PersistentVolume has gone.
func (a *api) release(pv string) {
	a.t.Helper()
	a.editPV(pv, func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeReleased })
}

// editClass changes a class in a way that says nothing to us.
func editClass(w *world, name string) {
	w.t.Helper()
	edit(w.api, &storagev1.StorageClass{}, name, func(c *storagev1.StorageClass) { c.Labels = map[string]string{"a": "b"} })
}
