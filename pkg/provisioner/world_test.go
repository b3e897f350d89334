package provisioner

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
)

// The fixtures of the seed's own tests.
const (
	ourName   = "foo.bar/baz"
	otherName = "abc.def/ghi"
	resync    = 100 * time.Millisecond
	threshold = 5
	server    = "v1.5.0"
)

// maker is a provisioner whose answers are scripted.
type maker struct {
	mu        sync.Mutex
	provision func(VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error)
	remove    func(*v1.PersistentVolume) error
	provided  []VolumeOptions
	removed   []string
	settled   []types.UID
	begun     []*v1.PersistentVolumeClaim
	begunAs   map[types.UID]string
	later     func(*v1.PersistentVolumeClaim)
	block     bool
	// unwanted claims are left to others.
	unwanted func(*v1.PersistentVolumeClaim) bool
}

func nfsVolume(options VolumeOptions) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: options.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: options.PersistentVolumeReclaimPolicy,
			AccessModes:                   options.PVC.Spec.AccessModes,
			Capacity:                      options.PVC.Spec.Resources.Requests,
			PersistentVolumeSource:        v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "foo", Path: "bar"}},
		},
	}
}

func (m *maker) Provision(VolumeOptions) (*v1.PersistentVolume, error) {
	return nil, errors.New("ProvisionExt is to be asked")
}

func (m *maker) ProvisionExt(_ context.Context, options VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
	m.mu.Lock()
	m.provided = append(m.provided, options)
	provision := m.provision
	m.mu.Unlock()
	if provision != nil {
		return provision(options)
	}
	return nfsVolume(options), ProvisioningFinished, nil
}

func (m *maker) Delete(pv *v1.PersistentVolume) error {
	m.mu.Lock()
	m.removed = append(m.removed, pv.Name)
	remove := m.remove
	m.mu.Unlock()
	if remove != nil {
		return remove(pv)
	}
	return nil
}

func (m *maker) SupportsBlock(context.Context) bool { return m.block }

func (m *maker) ShouldProvision(_ context.Context, claim *v1.PersistentVolumeClaim) bool {
	return m.unwanted == nil || !m.unwanted(claim)
}

func (m *maker) Begun(_ context.Context, later func(*v1.PersistentVolumeClaim)) ([]*v1.PersistentVolumeClaim, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.later = later
	return m.begun, nil
}

func (m *maker) BegunAs(uid types.UID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.begunAs[uid]
}

func (m *maker) Settle(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.settled = append(m.settled, uid)
}

// mends lets every call succeed from now on.
func (m *maker) mends() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.provision, m.remove = nil, nil
}

// asked are the calls of Provision so far.
func (m *maker) asked() []VolumeOptions {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.provided)
}

// settledOf is for which claims Settle was called.
func (m *maker) settledOf() []types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.settled)
}

func (m *maker) calls() (provisioned, removed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.provided), len(m.removed)
}

// plain is the seed's interface alone.
type plain struct{ m *maker }

func (p plain) Provision(options VolumeOptions) (*v1.PersistentVolume, error) {
	pv, _, err := p.m.ProvisionExt(context.Background(), options)
	return pv, err
}

func (p plain) Delete(pv *v1.PersistentVolume) error { return p.m.Delete(pv) }

// world is a controller on a fake API server, in a bubble of time.
type world struct {
	t      *testing.T
	client *fake.Clientset
	api    *api
	maker  *maker
	ctrl   *ProvisionController
	events *record.FakeRecorder
	// stop ends the controller; ended is closed when it has.
	stop  func()
	ended chan struct{}
	// err is what Run had to say.
	err error
}

// setup is what a test changes of a world.
type setup struct {
	objects     []runtime.Object
	server      string
	threshold   int
	options     []Option
	seedOnly    bool                     // the provisioner has the seed's two methods
	wrap        func(*maker) Provisioner // the provisioner is more than the maker
	maker       *maker
	before      func(*fake.Clientset)
	exponential bool
	noResync    bool
	giveUp      bool // failedRetryThreshold is 0
}

// newWorld makes a world and runs it for the rest of the bubble.
func newWorld(t *testing.T, s setup) *world {
	t.Helper()
	w := &world{t: t, client: fake.NewClientset(), maker: s.maker, events: record.NewFakeRecorder(10000), ended: make(chan struct{})}
	w.api = newAPI(t, w.client)
	for _, obj := range s.objects {
		w.api.add(obj)
	}
	if w.maker == nil {
		w.maker = &maker{}
	}
	if s.before != nil {
		s.before(w.client)
	}
	if s.server == "" {
		s.server = server
	}
	if s.threshold == 0 && !s.giveUp {
		s.threshold = threshold
	}
	var provisioner Provisioner = w.maker
	if s.seedOnly {
		provisioner = plain{w.maker}
	}
	if s.wrap != nil {
		provisioner = s.wrap(w.maker)
	}
	options := append([]Option{WithEventRecorder(w.events)}, s.options...)
	period := resync
	if s.noResync {
		period = 0
	}
	w.ctrl = NewProvisionController(w.client, period, ourName, provisioner, s.server, s.exponential, s.threshold, options...)
	stop := make(chan struct{})
	w.stop = sync.OnceFunc(func() { close(stop) })
	go func() {
		defer close(w.ended)
		w.err = w.ctrl.RunContext(wait.ContextForChannel(stop))
	}()
	t.Cleanup(func() {
		w.stop()
		<-w.ended
		if w.err != nil {
			t.Errorf("Run: %v", w.err)
		}
	})
	return w
}

// rest lets so many resync periods go by.
func (w *world) rest(periods int) {
	w.t.Helper()
	time.Sleep(time.Duration(periods)*resync + resync/2)
	synctest.Wait()
}

func (w *world) pvs() map[string]*v1.PersistentVolume {
	w.t.Helper()
	list, err := w.client.CoreV1().PersistentVolumes().List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	pvs := map[string]*v1.PersistentVolume{}
	for i := range list.Items {
		pvs[list.Items[i].Name] = &list.Items[i]
	}
	return pvs
}

// told drains the events.
func (w *world) told() (events []string) {
	for {
		select {
		case e := <-w.events.Events:
			events = append(events, e)
		default:
			return events
		}
	}
}

func storageClass(name, provisioner string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	policy := v1.PersistentVolumeReclaimDelete
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Provisioner: provisioner, ReclaimPolicy: &policy,
	}
	for _, f := range change {
		f(class)
	}
	return class
}

func withPolicy(p v1.PersistentVolumeReclaimPolicy) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) { c.ReclaimPolicy = &p }
}

func waitForConsumer(c *storagev1.StorageClass) {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	c.VolumeBindingMode = &mode
}

func claim(name, uid, class, provisioner string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(uid), Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceStorage: resource.MustParse("1Mi"),
			}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	if class != "" {
		c.Annotations[annotationStorageClass] = class
	}
	if provisioner != "" {
		c.Annotations[annotationBetaStorageProvisioner] = provisioner
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func annotated(key, value string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Annotations[key] = value }
}

func pv(name string, phase v1.PersistentVolumePhase, policy v1.PersistentVolumeReclaimPolicy, by string, change ...func(*v1.PersistentVolume)) *v1.PersistentVolume {
	v := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: policy,
			PersistentVolumeSource:        v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "foo", Path: "bar"}},
		},
		Status: v1.PersistentVolumeStatus{Phase: phase},
	}
	if by != "" {
		v.Annotations[AnnotationProvisionedBy] = by
	}
	for _, f := range change {
		f(v)
	}
	return v
}

func withFinalizers(names ...string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) { v.Finalizers = names }
}

func terminating(v *v1.PersistentVolume) {
	now := metav1.Now()
	v.DeletionTimestamp = &now
}

func csiVolume(driver, handle string) func(*v1.PersistentVolume) {
	return func(v *v1.PersistentVolume) {
		v.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}}
	}
}

// failing makes a verb on a resource fail so many times; 0: always.
func failing(verb, res string, times int) func(*fake.Clientset) {
	return func(c *fake.Clientset) {
		var mu sync.Mutex
		n := 0
		c.PrependReactor(verb, res, func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			n++
			if times > 0 && n > times {
				return false, nil, nil
			}
			return true, nil, errors.New("fake error")
		})
	}
}
