package attach

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const (
	testDriver = "csi.example.com"
	finalizer  = "external-attacher/csi-example-com"
)

// rig is a controller on a fake API and a fake driver, inside a synctest bubble.
type rig struct {
	api    *fakeAPI
	driver *fakeDriver
	events *record.FakeRecorder
	config func(*Config)
	// logger gets what the controller logs; none if zero.
	logger klog.Logger

	c    *Controller
	stop func()
	// done has what Run returned.
	done chan error
}

func newRig(driver *fakeDriver, objs ...runtime.Object) *rig {
	return &rig{api: newFakeAPI(objs...), driver: driver, events: record.NewFakeRecorder(10000)}
}

// start runs a controller, which is a new process or a new leader.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), r.logger))
	factory := informers.NewSharedInformerFactory(r.api, 0)
	cfg := Config{DriverName: testDriver, Driver: r.driver, Client: r.api, Informers: factory, Recorder: r.events, HoldOff: 15 * time.Second}
	if r.config != nil {
		r.config(&cfg)
	}
	c, err := New(cfg)
	must(err)
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	r.c, r.done = c, done
	r.stop = func() {
		cancel()
		must(<-done)
		factory.Shutdown()
	}
	r.settle(2 * time.Second)
}

// restart ends one process and starts the next.
func (r *rig) restart() {
	r.stop()
	r.start()
}

// settle lets d pass and everything that is due happen.
func (r *rig) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// run runs f with a started controller.
func (r *rig) run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	r.start()
	defer func() { r.stop() }()
	f(t)
	if err := r.driver.check(); err != nil {
		t.Error(err)
	}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func pv(name string, modes ...v1.PersistentVolumeAccessMode) *v1.PersistentVolume {
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: modes,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: testDriver, VolumeHandle: "h-" + name, VolumeAttributes: map[string]string{"pool": "fast"},
			}},
		},
	}
}

func rwo(name string) *v1.PersistentVolume { return pv(name, v1.ReadWriteOnce) }

// node is a Node with its CSINode; its ID is "id-" and the name.
func node(name string) []runtime.Object {
	return []runtime.Object{
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		csiNode(name, "id-"+name),
	}
}

func csiNode(name, id string) *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: testDriver, NodeID: id}}},
	}
}

func va(name, pvName, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: testDriver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pvName},
		},
	}
}

// published is a VolumeAttachment as a former leader left it.
func published(name, pvName, node string, committed bool) *storagev1.VolumeAttachment {
	a := va(name, pvName, node)
	a.Finalizers = []string{finalizer}
	a.Annotations = map[string]string{volume.AnnotationNodeID: "id-" + node}
	a.Status.Attached = committed
	return a
}

func objects(lists ...any) []runtime.Object {
	var out []runtime.Object
	for _, l := range lists {
		switch o := l.(type) {
		case []runtime.Object:
			out = append(out, o...)
		case runtime.Object:
			out = append(out, o)
		}
	}
	return out
}

// record puts a fence record on a VolumeAttachment, as hacontroller does.
func (r *rig) record(name string) *storagev1.VolumeAttachment {
	r.api.change(vaResource, name, func(o runtime.Object) {
		a := o.(*storagev1.VolumeAttachment)
		if a.Annotations == nil {
			a.Annotations = map[string]string{}
		}
		value, err := volume.FenceRecord{Node: a.Spec.NodeName}.Encode()
		must(err)
		a.Annotations[volume.AnnotationFenced] = value
	})
	return r.api.va(name)
}

// hold puts hacontroller's hold for volumes on a node; without any it lifts it.
func (r *rig) hold(node string, handles ...volume.Handle) {
	r.api.change(nodeResource, node, func(o runtime.Object) {
		n := o.(*v1.Node)
		key := volume.HoldKey(testDriver)
		if len(handles) == 0 {
			delete(n.Annotations, key)
			return
		}
		rec := volume.HoldRecord{}
		for _, h := range handles {
			rec.Volumes = append(rec.Volumes, volume.HeldVolume{Handle: h, Fenced: true})
		}
		value, err := rec.Encode()
		must(err)
		n.Annotations = map[string]string{key: value}
	})
}
