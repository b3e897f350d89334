package csiprovisioner

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

// retryMax is the longest pause of a cluster's controller.
const retryMax = 5 * time.Minute

// cluster is a world that the real controller drives, with the real topology and
// the real data sources, in a bubble of time.
type cluster struct {
	*world
	stop func()
}

// newCluster starts one, and ends it with the bubble. sources are what data sources
// are looked for among, untyped.
func newCluster(t *testing.T, caps Capabilities, sources []runtime.Object, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{world: newWorld(t, nil, objects...)}
	c.caps = caps
	yes := func() bool { return caps.CreateDelete }
	client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{}, sources...)
	resolver, err := source.New(source.Config{Dynamic: client, CanSnapshot: yes, CanClone: yes})
	if err != nil {
		t.Fatal(err)
	}
	c.cfg.Sources = resolver
	c.start()
	t.Cleanup(func() { c.stop() })
	return c
}

// start runs a process. The journal, the driver and the API server outlive it.
func (c *cluster) start() {
	c.t.Helper()
	shared := informers.NewSharedInformerFactory(c.client, 0)
	places, err := topology.New(topology.Config{
		DriverName: testDriver, Immediate: true, Nodes: shared.Core().V1().Nodes().Lister(), CSINodes: shared.Storage().V1().CSINodes().Lister(),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.cfg.Topology = places
	c.cfg.Classes, c.cfg.Volumes = shared.Storage().V1().StorageClasses().Lister(), shared.Core().V1().PersistentVolumes().Lister()
	if c.p, err = New(c.cfg); err != nil {
		c.t.Fatal(err)
	}
	ctrl := provisioner.NewProvisionController(c.client, 0, testDriver, c.p, "", true, 0, provisioner.WithInformerFactory(shared),
		provisioner.WithEventRecorder(c.events), provisioner.WithoutRetryLimit(), provisioner.WithRetryInterval(time.Second, retryMax),
		provisioner.WithSynced(shared.Core().V1().Nodes().Informer().HasSynced, shared.Storage().V1().CSINodes().Informer().HasSynced))
	stop, ended := make(chan struct{}), make(chan struct{})
	shared.Start(stop)
	go func() {
		defer close(ended)
		ctrl.Run(stop)
	}()
	c.stop = sync.OnceFunc(func() {
		close(stop)
		<-ended
		shared.Shutdown()
	})
}

// rest lets time pass, and returns the events of it.
func (c *cluster) rest(d time.Duration) (events []string) {
	c.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	for {
		select {
		case e := <-c.events.Events:
			if strings.Contains(e, canary) {
				c.t.Errorf("an event tells a secret: %s", e)
			}
			events = append(events, e)
		default:
			return events
		}
	}
}

// untyped is an object as the dynamic client has it.
func untyped(apiVersion, kind, namespace, name, uid string, fields map[string]any) *unstructured.Unstructured {
	metadata := map[string]any{"name": name, "uid": uid}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	object := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}
	for key, value := range fields {
		object[key] = value
	}
	return &unstructured.Unstructured{Object: object}
}

const snapshots = "snapshot.storage.k8s.io/v1"

// snapshotOf is a VolumeSnapshot ns/snap with its content.
func snapshotOf(driver string, status map[string]any, ref map[string]any) []runtime.Object {
	all := map[string]any{"boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": "1Gi"}
	for key, value := range status {
		all[key] = value
	}
	back := map[string]any{"namespace": "ns", "name": "snap", "uid": "snap-uid"}
	for key, value := range ref {
		back[key] = value
	}
	return []runtime.Object{
		untyped(snapshots, "VolumeSnapshot", "ns", "snap", "snap-uid", map[string]any{"status": all}),
		untyped(snapshots, "VolumeSnapshotContent", "", "content", "content-uid", map[string]any{
			"spec":   map[string]any{"driver": driver, "volumeSnapshotRef": back, "sourceVolumeMode": "Filesystem"},
			"status": map[string]any{"snapshotHandle": "sid"},
		}),
	}
}

// claimToClone is a claim ns/src that is bound.
func claimToClone(phase, size string) runtime.Object {
	return untyped("v1", "PersistentVolumeClaim", "ns", "src", "src-uid", map[string]any{
		"spec":   map[string]any{"storageClassName": "fast", "volumeName": "pv-src", "resources": map[string]any{"requests": map[string]any{"storage": size}}},
		"status": map[string]any{"phase": phase},
	})
}

// volumeToClone is the PersistentVolume of that claim, as far as the UID says so.
func volumeToClone(driver, uid string) runtime.Object {
	return untyped("v1", "PersistentVolume", "", "pv-src", "pv-uid", map[string]any{
		"spec": map[string]any{
			"csi": map[string]any{"driver": driver, "volumeHandle": "vid"}, "claimRef": map[string]any{"namespace": "ns", "name": "src", "uid": uid},
		},
		"status": map[string]any{"phase": "Bound"},
	})
}

// going has the first of the objects deleted, and others hold it.
func going(objects ...runtime.Object) []runtime.Object {
	if u, ok := objects[0].(*unstructured.Unstructured); ok {
		now := metav1.Now()
		u.SetDeletionTimestamp(&now)
		u.SetFinalizers([]string{"example.com/hold"})
	}
	return objects
}

// without takes a field out of the last of the objects.
func without(objects []runtime.Object, field ...string) []runtime.Object {
	if u, ok := objects[len(objects)-1].(*unstructured.Unstructured); ok {
		unstructured.RemoveNestedField(u.Object, field...)
	}
	return objects
}

func from(group, kind, name string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.DataSource = &v1.TypedLocalObjectReference{APIGroup: &group, Kind: kind, Name: name}
	}
}

func selected(node string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Annotations[provisioner.AnnotationSelectedNode] = node }
}

func node(name string, labels map[string]string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

func csiNode(name string, keys ...string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: testDriver, NodeID: name, TopologyKeys: keys}},
	}}
}

func allowing(key string, values ...string) func(*storagev1.StorageClass) {
	return func(c *storagev1.StorageClass) {
		c.AllowedTopologies = append(c.AllowedTopologies, v1.TopologySelectorTerm{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: key, Values: values}}})
	}
}
