package nodeshare

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

var (
	claimResource = v1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	claimGroup    = schema.GroupResource{Resource: "persistentvolumeclaims"}
)

// api is a fake API server that, unlike client-go's, counts versions of claims and
// refuses a write to another one than is meant.
type api struct {
	*fake.Clientset
	mu      sync.Mutex
	version int
	// updatesOnly: the role allows no patches.
	updatesOnly bool
	// writes that were let through, conflicts that were not.
	writes, conflicts int
	// before is called for each write, with the lock held; nil: nothing.
	before func()
	// fail has writes fail.
	fail error
}

func newAPI(objects ...runtime.Object) *api {
	a := &api{Clientset: fake.NewClientset(objects...)}
	a.PrependReactor("patch", claimResource.Resource, a.patch)
	a.PrependReactor("update", claimResource.Resource, a.update)
	return a
}

func (a *api) live(namespace, name string) (*v1.PersistentVolumeClaim, error) {
	obj, err := a.Tracker().Get(claimResource, namespace, name)
	if err != nil {
		return nil, err
	}
	return obj.(*v1.PersistentVolumeClaim).DeepCopy(), nil
}

// put writes a claim under the next version. Callers hold mu.
func (a *api) put(claim *v1.PersistentVolumeClaim) error {
	a.version++
	claim.ResourceVersion = strconv.Itoa(1000 + a.version)
	return a.Tracker().Update(claimResource, claim, claim.Namespace)
}

// change is a write of somebody else.
func (a *api) change(namespace, name string, f func(*v1.PersistentVolumeClaim)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	claim, err := a.live(namespace, name)
	if err != nil {
		panic(err)
	}
	f(claim)
	if err := a.put(claim); err != nil {
		panic(err)
	}
}

// begin is at the head of each write, with the lock held.
func (a *api) begin() error {
	if a.before != nil {
		a.before()
	}
	return a.fail
}

func (a *api) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := action.(clienttesting.PatchAction)
	if a.updatesOnly {
		return true, nil, apierrors.NewForbidden(claimGroup, p.GetName(), fmt.Errorf("no patch"))
	}
	if err := a.begin(); err != nil {
		return true, nil, err
	}
	claim, err := a.live(p.GetNamespace(), p.GetName())
	if err != nil {
		return true, nil, err
	}
	if p.GetPatch()[0] == '[' { // a JSON patch, by which the controller gives a claim back
		var steps []struct{ Op, Path, Value string }
		if err := json.Unmarshal(p.GetPatch(), &steps); err != nil {
			return true, nil, err
		}
		for _, step := range steps {
			if step.Op == "test" && step.Value != claim.Annotations[provisioner.AnnotationSelectedNode] && step.Value != string(claim.UID) {
				return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolumeClaim"}, claim.Name, nil)
			}
		}
		delete(claim.Annotations, provisioner.AnnotationSelectedNode)
		return true, claim, a.put(claim)
	}
	var change metav1.PartialObjectMetadata
	if err := json.Unmarshal(p.GetPatch(), &change); err != nil {
		return true, nil, err
	}
	if change.ResourceVersion != "" && change.ResourceVersion != claim.ResourceVersion || change.UID != claim.UID {
		a.conflicts++
		return true, nil, apierrors.NewConflict(claimGroup, claim.Name, fmt.Errorf("version %s", change.ResourceVersion))
	}
	a.writes++
	for key, value := range change.Annotations {
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, key, value)
	}
	return true, claim, a.put(claim)
}

func (a *api) update(action clienttesting.Action) (bool, runtime.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.begin(); err != nil {
		return true, nil, err
	}
	claim := action.(clienttesting.UpdateAction).GetObject().(*v1.PersistentVolumeClaim).DeepCopy()
	live, err := a.live(claim.Namespace, claim.Name)
	if err != nil {
		return true, nil, err
	}
	if live.ResourceVersion != claim.ResourceVersion {
		a.conflicts++
		return true, nil, apierrors.NewConflict(claimGroup, claim.Name, fmt.Errorf("version %s", claim.ResourceVersion))
	}
	a.writes++
	return true, claim, a.put(claim)
}
