package csiprovisioner

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

const (
	testDriver = "csi.example.com"
	// canary is what must never be seen but by the driver.
	canary = "hunter2-canary"
)

// world is a Provisioner with all that it needs, faked.
type world struct {
	t          *testing.T
	p          *Provisioner
	driver     *fakeDriver
	journal    *fakeJournal
	topology   *fakeTopology
	sources    *fakeSources
	protection *fakeProtection
	client     *fake.Clientset
	classes    cache.Indexer
	pvs        cache.Indexer
	events     *record.FakeRecorder
	caps       Capabilities
	cfg        Config
}

// newWorld makes one whose driver can create and delete, and no more.
func newWorld(t *testing.T, change func(*Config), objects ...runtime.Object) *world {
	t.Helper()
	w := &world{
		t: t, driver: &fakeDriver{}, journal: newFakeJournal(), topology: &fakeTopology{}, sources: &fakeSources{}, protection: newFakeProtection(),
		client: fake.NewClientset(objects...), events: record.NewFakeRecorder(1000), caps: Capabilities{CreateDelete: true},
		classes: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil), pvs: cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil),
	}
	w.cfg = Config{
		DriverName: testDriver, Driver: w.driver, Capabilities: func() Capabilities { return w.caps }, Client: w.client,
		Classes: storagelisters.NewStorageClassLister(w.classes), Volumes: corelisters.NewPersistentVolumeLister(w.pvs),
		Journal: w.journal, Topology: w.topology, Sources: w.sources, Protection: w.protection, Recorder: w.events, Identity: "me",
	}
	hide(w.client)
	if change != nil {
		change(&w.cfg)
	}
	w.restart()
	return w
}

// restart puts a new Provisioner in the place of the old one, as a new leader does.
func (w *world) restart() (begun []*v1.PersistentVolumeClaim) {
	w.t.Helper()
	var err error
	if w.p, err = New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
	begun, err = w.p.Begun(w.t.Context(), func(*v1.PersistentVolumeClaim) {})
	if err != nil {
		w.t.Fatal(err)
	}
	return begun
}

func (w *world) provision(o provisioner.VolumeOptions) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	w.t.Helper()
	return w.p.ProvisionExt(w.t.Context(), o)
}

// made provisions and wants a volume.
func (w *world) made(o provisioner.VolumeOptions) *v1.PersistentVolume {
	w.t.Helper()
	pv, state, err := w.provision(o)
	if err != nil || state != provisioner.ProvisioningFinished {
		w.t.Fatalf("state %s, %v", state, err)
	}
	return pv
}

// fails provisions and wants an error with a text, in a state.
func (w *world) fails(o provisioner.VolumeOptions, want provisioner.ProvisioningState, text string) error {
	w.t.Helper()
	pv, state, err := w.provision(o)
	if err == nil || pv != nil || state != want || !strings.Contains(err.Error(), text) {
		w.t.Fatalf("PersistentVolume %v, state %s, error %v; want state %s and an error with %q", pv, state, err, want, text)
	}
	if strings.Contains(err.Error(), canary) {
		w.t.Errorf("the error tells a secret: %v", err)
	}
	return err
}

// wantJournal compares the keys of the journal.
func (w *world) wantJournal(want ...string) {
	w.t.Helper()
	if got := w.journal.keys(); strings.Join(got, " ") != strings.Join(want, " ") {
		w.t.Errorf("the journal has %q, want %q", got, want)
	}
}

func (w *world) wantCalls(created, deleted int) {
	w.t.Helper()
	if c, d := w.driver.calls(); c != created || d != deleted {
		w.t.Errorf("the driver was called %d times to create and %d times to delete, want %d and %d", c, d, created, deleted)
	}
}

func ptr[T any](v T) *T { return &v }

func class(parameters map[string]string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "class-uid"}, Provisioner: testDriver, Parameters: parameters,
		ReclaimPolicy: ptr(v1.PersistentVolumeReclaimDelete),
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func claim(change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "data", UID: "uid-1", ResourceVersion: "7",
			Annotations: map[string]string{provisioner.AnnotationStorageProvisioner: testDriver},
		},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, StorageClassName: ptr("fast"),
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func sized(size string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	}
}

func modes(m ...v1.PersistentVolumeAccessMode) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Spec.AccessModes = m }
}

func block(c *v1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr(v1.PersistentVolumeBlock) }

// options are what the controller asks with.
func options(c *v1.PersistentVolumeClaim, sc *storagev1.StorageClass) provisioner.VolumeOptions {
	o := provisioner.VolumeOptions{PVName: "pvc-" + string(c.UID), PVC: c, StorageClass: sc, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimDelete}
	if sc != nil {
		o.Parameters = sc.Parameters
		if sc.ReclaimPolicy != nil {
			o.PersistentVolumeReclaimPolicy = *sc.ReclaimPolicy
		}
	}
	return o
}

func onNode(o provisioner.VolumeOptions, node string) provisioner.VolumeOptions {
	o.SelectedNode = node
	return o
}

func abandoned(o provisioner.VolumeOptions) provisioner.VolumeOptions {
	o.Abandoned, o.StorageClass = true, nil
	return o
}

func secretOf(namespace, name, value string) *v1.Secret {
	return &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"password": []byte(value)}}
}

// named are the parameters of the provisioner's secret.
func named(name, namespace string) map[string]string {
	return map[string]string{provisionerSecret.name: name, provisionerSecret.namespace: namespace}
}

// hide makes the secret "hidden" one that may not be read.
func hide(client *fake.Clientset) {
	client.PrependReactor("get", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if get, ok := a.(clienttesting.GetAction); !ok || get.GetName() != "hidden" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "hidden", errors.New("no"))
	})
}
