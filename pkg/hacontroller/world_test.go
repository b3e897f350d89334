package hacontroller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	driver = "d.example.com"
	node1  = "n1"
)

var (
	podsGVR  = v1.SchemeGroupVersion.WithResource("pods")
	nodesGVR = v1.SchemeGroupVersion.WithResource("nodes")
	vasGVR   = storagev1.SchemeGroupVersion.WithResource("volumeattachments")
)

// world is a fake API server that also keeps the rules this package relies on:
// resourceVersions that move, preconditions, finalizers, graceful deletion and
// evictions. What it did is in writes, one line each.
type world struct {
	t       *testing.T
	client  *fake.Clientset
	tracker clienttesting.ObjectTracker

	mu     sync.Mutex
	rv     int
	writes []string
	events []string
	// before is called ahead of every write; an error keeps it from happening.
	before func(line string) error
	// after is called once a write has happened; an error loses its answer.
	after func(line string) error
	// budgets are answers to evictions, by pod name.
	budgets map[string]error
	// gone is called after an object has been removed for good.
	gone func(obj runtime.Object)
	// hac is the controller that runs.
	hac *haController
}

func newWorld(t *testing.T, objs ...runtime.Object) *world {
	w := &world{t: t, client: fake.NewClientset(), rv: 1000, budgets: map[string]error{}}
	w.tracker = w.client.Tracker()
	w.client.PrependReactor("patch", "*", w.patch)
	w.client.PrependReactor("delete", "*", w.delete)
	w.client.PrependReactor("create", "pods/eviction", w.evict)
	w.add(objs...)
	return w
}

func (w *world) nextRV() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rv++
	return strconv.Itoa(w.rv)
}

func (w *world) add(objs ...runtime.Object) {
	for _, obj := range objs {
		o, err := meta.Accessor(obj)
		if err != nil {
			w.t.Fatal(err)
		}
		o.SetResourceVersion(w.nextRV())
		if err := w.tracker.Add(obj); err != nil {
			w.t.Fatal(err)
		}
	}
}

// update changes an object as somebody else would.
func update[T runtime.Object](w *world, gvr schema.GroupVersionResource, ns, name string, change func(T)) {
	w.t.Helper()
	obj, err := w.tracker.Get(gvr, ns, name)
	if err != nil {
		w.t.Fatal(err)
	}
	o := obj.(T)
	change(o)
	m, _ := meta.Accessor(o)
	m.SetResourceVersion(w.nextRV())
	if err := w.tracker.Update(gvr, o, ns); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) begin(line string) error {
	w.mu.Lock()
	before := w.before
	w.mu.Unlock()
	if before != nil {
		if err := before(line); err != nil {
			return err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writes = append(w.writes, line)
	return nil
}

func (w *world) end(line string) error {
	w.mu.Lock()
	after := w.after
	w.mu.Unlock()
	if after != nil {
		return after(line)
	}
	return nil
}

func (w *world) current(a clienttesting.Action, name string) (runtime.Object, metav1.Object, error) {
	obj, err := w.tracker.Get(a.GetResource(), a.GetNamespace(), name)
	if err != nil {
		return nil, nil, err
	}
	m, err := meta.Accessor(obj)
	return obj, m, err
}

func (w *world) patch(action clienttesting.Action) (bool, runtime.Object, error) {
	p := action.(clienttesting.PatchActionImpl)
	_, cur, err := w.current(p, p.Name)
	if err != nil {
		return true, nil, err
	}
	if p.PatchType == types.JSONPatchType {
		return w.jsonPatch(p)
	}
	var patch map[string]any
	if err := json.Unmarshal(p.Patch, &patch); err != nil {
		return true, nil, err
	}
	md, _ := patch["metadata"].(map[string]any)
	if uid, ok := md["uid"].(string); ok && uid != string(cur.GetUID()) {
		return true, nil, apierrors.NewConflict(p.Resource.GroupResource(), p.Name, fmt.Errorf("UID %s", cur.GetUID()))
	}
	if rv, ok := md["resourceVersion"].(string); ok && rv != cur.GetResourceVersion() {
		return true, nil, apierrors.NewConflict(p.Resource.GroupResource(), p.Name, fmt.Errorf("version %s", cur.GetResourceVersion()))
	}
	line := "patch " + strings.TrimSuffix(p.Resource.Resource+"/"+p.Subresource, "/") + " " + p.Name
	if err := w.begin(line); err != nil {
		return true, nil, err
	}
	if md == nil {
		md = map[string]any{}
	}
	md["resourceVersion"] = w.nextRV()
	patch["metadata"] = md
	if p.Patch, err = json.Marshal(patch); err != nil {
		return true, nil, err
	}
	return w.applied(p, line)
}

// jsonPatch answers a test that fails as the API server does.
func (w *world) jsonPatch(p clienttesting.PatchActionImpl) (bool, runtime.Object, error) {
	obj, _, err := w.current(p, p.Name)
	if err != nil {
		return true, nil, err
	}
	before, err := json.Marshal(obj)
	if err != nil {
		return true, nil, err
	}
	patch, err := jsonpatch.DecodePatch(p.Patch)
	if err != nil {
		return true, nil, err
	}
	if _, err := patch.Apply(before); err != nil {
		return true, nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	line := "patch " + p.Resource.Resource + " " + p.Name
	if err := w.begin(line); err != nil {
		return true, nil, err
	}
	bump := fmt.Sprintf(`,{"op":"add","path":"/metadata/resourceVersion","value":%q}]`, w.nextRV())
	p.Patch = append(bytes.TrimSuffix(p.Patch, []byte("]")), bump...)
	return w.applied(p, line)
}

func (w *world) applied(p clienttesting.PatchActionImpl, line string) (bool, runtime.Object, error) {
	if _, obj, err := clienttesting.ObjectReaction(w.tracker)(p); err != nil {
		return true, obj, err
	}
	obj, err := w.tracker.Get(p.Resource, p.Namespace, p.Name)
	if e := w.end(line); e != nil {
		return true, nil, e
	}
	return true, obj, err
}

func (w *world) delete(action clienttesting.Action) (bool, runtime.Object, error) {
	d := action.(clienttesting.DeleteActionImpl)
	obj, cur, err := w.current(d, d.Name)
	if err != nil {
		return true, nil, err
	}
	if p := d.DeleteOptions.Preconditions; p == nil || p.UID == nil {
		return true, nil, fmt.Errorf("deleting %s without a UID precondition", d.Name)
	} else if *p.UID != cur.GetUID() {
		return true, nil, apierrors.NewConflict(d.Resource.GroupResource(), d.Name, fmt.Errorf("UID %s", cur.GetUID()))
	}
	line := fmt.Sprintf("delete %s %s %s", d.Resource.Resource, d.Name, cur.GetUID())
	if err := w.begin(line); err != nil {
		return true, nil, err
	}
	grace := int64(0)
	if g := d.DeleteOptions.GracePeriodSeconds; g != nil {
		grace = *g
	}
	if len(cur.GetFinalizers()) > 0 {
		w.terminate(d, obj, cur, grace)
	} else if err := w.remove(d.Resource, obj, cur); err != nil {
		return true, nil, err
	}
	return true, nil, w.end(line)
}

func (w *world) terminate(a clienttesting.Action, obj runtime.Object, cur metav1.Object, grace int64) {
	now := metav1.Now()
	cur.SetDeletionTimestamp(&now)
	cur.SetDeletionGracePeriodSeconds(&grace)
	cur.SetResourceVersion(w.nextRV())
	if err := w.tracker.Update(a.GetResource(), obj, a.GetNamespace()); err != nil {
		w.t.Error(err)
	}
}

// remove takes an object out of the world, and lets the world answer.
func (w *world) remove(gvr schema.GroupVersionResource, obj runtime.Object, cur metav1.Object) error {
	if err := w.tracker.Delete(gvr, cur.GetNamespace(), cur.GetName()); err != nil {
		return err
	}
	if w.gone != nil {
		w.gone(obj)
	}
	return nil
}

func (w *world) evict(action clienttesting.Action) (bool, runtime.Object, error) {
	e := action.(clienttesting.CreateActionImpl).Object.(*policyv1.Eviction)
	obj, cur, err := w.current(action, e.Name)
	if err != nil {
		return true, nil, err
	}
	opts := e.DeleteOptions
	if opts.Preconditions == nil || opts.Preconditions.UID == nil || opts.GracePeriodSeconds == nil || *opts.GracePeriodSeconds < 1 {
		return true, nil, fmt.Errorf("evicting %s without UID or grace", e.Name)
	}
	if *opts.Preconditions.UID != cur.GetUID() {
		return true, nil, apierrors.NewConflict(podsGVR.GroupResource(), e.Name, fmt.Errorf("UID %s", cur.GetUID()))
	}
	w.mu.Lock()
	refusal := w.budgets[e.Name]
	w.mu.Unlock()
	if refusal != nil {
		return true, nil, refusal
	}
	line := fmt.Sprintf("evict %s %s grace=%d", e.Name, cur.GetUID(), *opts.GracePeriodSeconds)
	if err := w.begin(line); err != nil {
		return true, nil, err
	}
	w.terminate(action, obj, cur, *opts.GracePeriodSeconds)
	return true, nil, w.end(line)
}

// stop is what a kubelet does with a terminating pod, or a person with an object
// whose finalizers are stuck.
func (w *world) stop(gvr schema.GroupVersionResource, ns, name string) {
	w.t.Helper()
	obj, err := w.tracker.Get(gvr, ns, name)
	if err != nil {
		w.t.Fatal(err)
	}
	cur, _ := meta.Accessor(obj)
	if err := w.remove(gvr, obj, cur); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) log() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

// logged counts the writes that begin with prefix.
func (w *world) logged(prefix string) int {
	n := 0
	for _, line := range w.log() {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

func (w *world) uid(gvr schema.GroupVersionResource, ns, name string) types.UID {
	obj, err := w.tracker.Get(gvr, ns, name)
	if err != nil {
		return ""
	}
	m, _ := meta.Accessor(obj)
	return m.GetUID()
}

func (w *world) node() *v1.Node {
	w.t.Helper()
	obj, err := w.tracker.Get(nodesGVR, "", node1)
	if err != nil {
		w.t.Fatal(err)
	}
	return obj.(*v1.Node)
}

// recorder keeps events; it implements record.EventRecorder.
func (w *world) Event(obj runtime.Object, kind, reason, message string) {
	w.Eventf(obj, kind, reason, "%s", message)
}

func (w *world) Eventf(obj runtime.Object, _, reason, format string, args ...any) {
	name := ""
	if m, err := meta.Accessor(obj); err == nil {
		name = m.GetName()
	} else if ref, ok := obj.(*v1.ObjectReference); ok {
		name = ref.Name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, reason+" "+name+" "+fmt.Sprintf(format, args...))
}

func (w *world) AnnotatedEventf(obj runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	w.Eventf(obj, kind, reason, format, args...)
}

// told counts the events that begin with prefix.
func (w *world) told(prefix string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		if strings.HasPrefix(e, prefix) {
			n++
		}
	}
	return n
}

// Objects.

func aNode(ready bool, change ...func(*v1.Node)) *v1.Node {
	status := v1.ConditionUnknown
	if ready {
		status = v1.ConditionTrue
	}
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node1, UID: "node-1"},
		Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "foreign", Effect: v1.TaintEffectNoSchedule, Value: "x"}}},
		Status: v1.NodeStatus{
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: status}},
			NodeInfo:   v1.NodeSystemInfo{BootID: "boot-1"},
		},
	}
	for _, f := range change {
		f(n)
	}
	return n
}

// aPod is a StatefulSet's pod on n1 that uses the claims of these volumes.
func aPod(name string, pvs ...string) *v1.Pod {
	yes := true
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "ns", UID: types.UID("uid-" + name), Labels: map[string]string{"app": name},
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "s", UID: "s", Controller: &yes}},
		},
		Spec:   v1.PodSpec{NodeName: node1},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
	for _, pv := range pvs {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: pv, VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claim-" + pv},
		}})
	}
	return pod
}

// aVolume is a PersistentVolume, its claim, and its attachment to n1.
func aVolume(pv string) []runtime.Object {
	return []runtime.Object{
		&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: pv, UID: types.UID("uid-" + pv)},
			Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
				CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h-" + pv},
			}},
		},
		&v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "claim-" + pv, Namespace: "ns", UID: types.UID("uid-claim-" + pv)},
			Spec:       v1.PersistentVolumeClaimSpec{VolumeName: pv},
		},
		anAttachment(pv, node1),
	}
}

func anAttachment(pv, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-" + pv + "-" + node, UID: types.UID("uid-va-" + pv + "-" + node)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
		},
	}
}

// fakeTargets is a judge that answers from a map.
type fakeTargets struct {
	mu    sync.Mutex
	byPV  map[string][]volume.Target
	asked int
}

func (f *fakeTargets) Targets(pv string) ([]volume.Target, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	targets, ok := f.byPV[pv]
	return slices.Clone(targets), ok
}

func (f *fakeTargets) withdraw(pv string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byPV = maps.Clone(f.byPV)
	delete(f.byPV, pv)
}

// targetsOf is the closure of all these volumes, which the pod uids use.
func targetsOf(pvs []string, pods ...types.UID) *fakeTargets {
	var closure []volume.Target
	for _, pv := range pvs {
		closure = append(closure, volume.Target{
			PV: pv, Node: node1, VolumeAttachmentUID: types.UID("uid-va-" + pv + "-" + node1), PodUIDs: pods,
		})
	}
	f := &fakeTargets{byPV: map[string][]volume.Target{}}
	for _, pv := range pvs {
		f.byPV[pv] = closure
	}
	return f
}

// fakeFencer acknowledges, but for its first failures; hang blocks it.
type fakeFencer struct {
	mu       sync.Mutex
	w        *world
	failures int
	hang     chan struct{}
	fenced   []string
	unfenced []string
}

func (f *fakeFencer) Fence(ctx context.Context, va *storagev1.VolumeAttachment) error {
	if !volume.Fenced(va) {
		f.w.t.Errorf("fenced %s without a record", va.Name)
	}
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failures > 0 {
		f.failures--
		return fmt.Errorf("the array is busy")
	}
	if err := f.w.begin("fence " + va.Name); err != nil {
		return err
	}
	f.fenced = append(f.fenced, va.Name)
	return f.w.end("fence " + va.Name)
}

func (f *fakeFencer) Unfence(_ context.Context, node string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unfenced = append(f.unfenced, node)
	return nil
}

func (f *fakeFencer) lifted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.unfenced)
}

// run starts a controller in the bubble and returns how to signal and stop it.
func (w *world) run(opts ...Option) (signal func(pv string), stop func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	failing := make(chan string, 100)
	hac := NewHAController("test", w.client, failing, append([]Option{WithEventRecorder(w)}, opts...)...)
	w.hac = hac
	done := make(chan error, 1)
	go func() { done <- hac.Run(ctx) }()
	synctest.Wait()
	signal = func(pv string) {
		failing <- pv
		synctest.Wait()
	}
	return signal, func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Errorf("Run returned %v", err)
		}
	}
}

// pass lets fake time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
