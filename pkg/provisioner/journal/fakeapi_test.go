package journal

import (
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// api is the part of an API server that the journal stands on: ConfigMaps with
// preconditions on their version, which client-go's fake does not have.
type api struct {
	*fake.Clientset

	mu      sync.Mutex
	version int
	maps    map[string]*v1.ConfigMap
	writes  int
	// before is asked before each write, and may fail it; after decides whether
	// the answer arrives.
	before, after func(cm *v1.ConfigMap) error
}

func newAPI() *api {
	a := &api{Clientset: fake.NewClientset(), maps: map[string]*v1.ConfigMap{}}
	a.PrependReactor("*", "configmaps", a.react)
	return a
}

func (a *api) react(action clienttesting.Action) (bool, runtime.Object, error) {
	switch act := action.(type) {
	case clienttesting.CreateAction: // an update has the same methods
		cm, ok := act.GetObject().(*v1.ConfigMap)
		if !ok {
			return false, nil, nil
		}
		stored, err := a.write(cm, action.GetVerb() == "create")
		if err != nil {
			return true, nil, err
		}
		return true, stored, nil
	case clienttesting.GetAction:
		a.mu.Lock()
		defer a.mu.Unlock()
		if cm := a.maps[act.GetName()]; cm != nil {
			return true, cm.DeepCopy(), nil
		}
		return true, nil, apierrors.NewNotFound(v1.Resource("configmaps"), act.GetName())
	case clienttesting.ListAction:
		a.mu.Lock()
		defer a.mu.Unlock()
		list := &v1.ConfigMapList{}
		for _, cm := range a.maps {
			if act.GetListRestrictions().Labels.Matches(labelSet(cm.Labels)) {
				list.Items = append(list.Items, *cm.DeepCopy())
			}
		}
		return true, list, nil
	}
	return false, nil, nil
}

type labelSet map[string]string

func (l labelSet) Has(k string) bool              { _, ok := l[k]; return ok }
func (l labelSet) Get(k string) string            { return l[k] }
func (l labelSet) Lookup(k string) (string, bool) { v, ok := l[k]; return v, ok }

// write applies a create or an update with its preconditions.
func (a *api) write(cm *v1.ConfigMap, create bool) (*v1.ConfigMap, error) {
	if a.before != nil {
		if err := a.before(cm); err != nil {
			return nil, err
		}
	}
	stored, err := a.store(cm, create)
	a.mu.Lock()
	after := a.after
	a.mu.Unlock()
	if err == nil && after != nil {
		err = after(stored)
	}
	return stored, err
}

func (a *api) store(cm *v1.ConfigMap, create bool) (*v1.ConfigMap, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.maps[cm.Name]
	resource := v1.Resource("configmaps")
	switch {
	case create && was != nil:
		return nil, apierrors.NewAlreadyExists(resource, cm.Name)
	case !create && was == nil:
		return nil, apierrors.NewNotFound(resource, cm.Name)
	case !create && cm.ResourceVersion != "" && was.ResourceVersion != cm.ResourceVersion: // one without is unconditional
		return nil, apierrors.NewConflict(resource, cm.Name, nil)
	}
	a.version++
	a.writes++
	cm = cm.DeepCopy()
	cm.ResourceVersion, cm.UID = strconv.Itoa(a.version), types.UID("uid of "+cm.Name)
	a.maps[cm.Name] = cm
	return cm.DeepCopy(), nil
}

// data is all that the pages hold.
func (a *api) data() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]string{}
	for _, cm := range a.maps {
		for k, v := range cm.Data {
			all[k] = v
		}
	}
	return all
}

func (a *api) written() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes
}
