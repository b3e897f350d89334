package capacity

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var (
	capacities = storagev1.SchemeGroupVersion.WithResource("csistoragecapacities")
	classes    = storagev1.SchemeGroupVersion.WithResource("storageclasses")
)

// fakeAPI is client-go's fake with what matters here of a real API server: names,
// UIDs, resource versions and preconditions.
type fakeAPI struct {
	*fake.Clientset
	mu      sync.Mutex
	version int
	// fault may fail a request for our objects: before it is done, or after it, with
	// its answer lost.
	fault func(verb string) (before, after error)
	done  map[string]int
}

func newFakeAPI() *fakeAPI {
	a := &fakeAPI{Clientset: fake.NewClientset(), done: map[string]int{}}
	for verb, f := range map[string]clienttesting.ReactionFunc{"create": a.create, "patch": a.patch, "delete": a.delete} {
		a.PrependReactor(verb, capacities.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			before, after := a.failing(verb)
			if before != nil {
				return true, nil, before
			}
			a.done[verb]++
			handled, obj, err := f(action)
			if err == nil && after != nil {
				return true, nil, after
			}
			return handled, obj, err
		})
	}
	a.PrependReactor("list", capacities.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		before, _ := a.failing("list")
		return before != nil, nil, before
	})
	return a
}

func (a *fakeAPI) failing(verb string) (before, after error) {
	if a.fault == nil {
		return nil, nil
	}
	return a.fault(verb)
}

func (a *fakeAPI) setFault(f func(verb string) (before, after error)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fault = f
}

func (a *fakeAPI) count(verb string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.done[verb]
}

func (a *fakeAPI) writes() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, c := range a.done {
		n += c
	}
	return n
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// store gives an object what the server gives it. The caller holds mu.
func (a *fakeAPI) store(obj *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	a.version++
	obj = obj.DeepCopy()
	obj.ResourceVersion = strconv.Itoa(a.version)
	if obj.UID == "" {
		obj.UID = types.UID(fmt.Sprintf("uid-%d", a.version))
		if obj.Name == "" {
			obj.Name = fmt.Sprintf("%s%d", obj.GenerateName, a.version)
		}
		if obj.CreationTimestamp.IsZero() {
			obj.CreationTimestamp = metav1.NewTime(time.Now())
		}
		must(a.Tracker().Create(capacities, obj, obj.Namespace))
		return obj
	}
	must(a.Tracker().Update(capacities, obj, obj.Namespace))
	return obj
}

// add creates an object behind the controller's back.
func (a *fakeAPI) add(obj *storagev1.CSIStorageCapacity) *storagev1.CSIStorageCapacity {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.store(obj)
}

func (a *fakeAPI) create(action clienttesting.Action) (bool, runtime.Object, error) {
	obj := action.(clienttesting.CreateAction).GetObject().(*storagev1.CSIStorageCapacity)
	if obj.Name != "" || obj.UID != "" || obj.Capacity == nil || obj.Capacity.Sign() < 0 {
		return true, nil, apierrors.NewBadRequest("no such object is to be created")
	}
	return true, a.store(obj).DeepCopy(), nil
}

func (a *fakeAPI) get(namespace, name string) (*storagev1.CSIStorageCapacity, error) {
	obj, err := a.Tracker().Get(capacities, namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*storagev1.CSIStorageCapacity), nil
}

func conflict(name string) error {
	return apierrors.NewConflict(capacities.GroupResource(), name, errors.New("the object has been modified"))
}

func (a *fakeAPI) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	p := action.(clienttesting.PatchAction)
	obj, err := a.get(p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	var head struct{ Metadata metav1.ObjectMeta }
	must(json.Unmarshal(p.GetPatch(), &head))
	if head.Metadata.UID != obj.UID || head.Metadata.ResourceVersion != obj.ResourceVersion {
		return true, nil, conflict(p.GetName())
	}
	before, err := json.Marshal(obj)
	must(err)
	after, err := jsonpatch.MergePatch(before, p.GetPatch())
	must(err)
	var patched storagev1.CSIStorageCapacity
	must(json.Unmarshal(after, &patched))
	return true, a.store(&patched).DeepCopy(), nil
}

func (a *fakeAPI) delete(action clienttesting.Action) (bool, runtime.Object, error) {
	d := action.(clienttesting.DeleteActionImpl)
	obj, err := a.get(d.GetNamespace(), d.GetName())
	if err != nil {
		return true, nil, err
	}
	p := d.DeleteOptions.Preconditions
	if p == nil || p.UID == nil || p.ResourceVersion == nil {
		return true, nil, apierrors.NewBadRequest("a delete without preconditions")
	}
	if *p.UID != obj.UID || *p.ResourceVersion != obj.ResourceVersion {
		return true, nil, conflict(d.GetName())
	}
	return true, nil, a.Tracker().Delete(capacities, d.GetNamespace(), d.GetName())
}

// objects are all that there are, of whomever.
func (a *fakeAPI) objects() []storagev1.CSIStorageCapacity {
	list, err := a.Tracker().List(capacities, storagev1.SchemeGroupVersion.WithKind("CSIStorageCapacity"), "")
	must(err)
	return list.(*storagev1.CSIStorageCapacityList).Items
}

// told is what the objects say, as "segment class bytes[/largest]", sorted.
func (a *fakeAPI) told() []string {
	var out []string
	for _, obj := range a.objects() {
		line := fmt.Sprintf("%s %s %d", itemOf(&obj).segment, obj.StorageClassName, obj.Capacity.Value())
		if obj.MaximumVolumeSize != nil {
			line += fmt.Sprintf("/%d", obj.MaximumVolumeSize.Value())
		}
		out = append(out, strings.TrimSpace(line))
	}
	slices.Sort(out)
	return out
}

func forbidden() error {
	return apierrors.NewForbidden(capacities.GroupResource(), "", errors.New("RBAC"))
}
