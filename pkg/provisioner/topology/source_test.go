package topology

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
)

func listed(t *testing.T, source interface{ Segments() ([]Segment, error) }) string {
	t.Helper()
	segments, err := source.Segments()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range segments {
		out = append(out, s.String())
	}
	return strings.Join(out, "; ")
}

// T21: a set, however many nodes a segment has.
func TestSegmentsAreASet(t *testing.T) {
	c := newCluster()
	for i := range 100 {
		name := fmt.Sprintf("n%d", i)
		c.node(name, fmt.Sprintf("zone=%d,rack=%d", i%3, i%2))
		c.csiNode(name, "zone,rack")
	}
	before := frozen(c.csiNodes)
	if got, want := listed(t, c.builder(t, false, true)), "rack=0,zone=0; rack=0,zone=1; rack=0,zone=2; rack=1,zone=0; rack=1,zone=1; rack=1,zone=2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for key, obj := range before {
		was := obj.(*storagev1.CSINode).Spec.Drivers[1].TopologyKeys
		is, _, _ := c.csiNodes.GetByKey(strings.TrimPrefix(key, "0"))
		if fmt.Sprint(was) != fmt.Sprint(is.(*storagev1.CSINode).Spec.Drivers[1].TopologyKeys) {
			t.Fatalf("the cached CSINode %s was sorted", key)
		}
	}
}

func TestSegmentsAreThoseOfTheDriver(t *testing.T) {
	for name, test := range map[string]struct {
		cluster *cluster
		want    string
	}{
		"no nodes":               {newCluster(), ""},
		"a node without it":      {of("n1 zone=a zone", "n2 zone=b -", "n3 zone=c !"), "zone=a"},
		"a node that is gone":    {of("n1 zone=a zone", "n2 ! zone"), "zone=a"},
		"a node without a label": {of("n1 zone=a zone,rack", "n2 zone=b,rack=1 zone,rack"), "rack=1,zone=b"},
		"different keys":         {of("n1 zone=a,rack=1 zone", "n2 zone=a,rack=1 rack"), "rack=1; zone=a"},
		"a key twice":            {of("n1 zone=a zone,zone"), "zone=a"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := listed(t, test.cluster.builder(t, false, true)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// A lister that fails is an error, not an empty set, which would delete objects.
func TestWhatCannotBeListedIsNotNothing(t *testing.T) {
	c := zones()
	broken := errors.New("broken")
	for name, cfg := range map[string]Config{
		"nodes":    {Nodes: brokenNodes{corelisters.NewNodeLister(c.nodes), broken}, CSINodes: storagelisters.NewCSINodeLister(c.csiNodes)},
		"CSINodes": {Nodes: corelisters.NewNodeLister(c.nodes), CSINodes: brokenCSINodes{storagelisters.NewCSINodeLister(c.csiNodes), broken}},
	} {
		cfg.DriverName, cfg.Immediate = driver, true
		b, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := b.Segments(); !errors.Is(err, broken) {
			t.Errorf("%s: segments %v, %v", name, s, err)
		}
		for _, node := range []string{"", "n1"} {
			if r, err := b.Requirements("c", nil, node); !errors.Is(err, broken) || errors.Is(err, ErrNodeGone) {
				t.Errorf("%s: requirements for node %q: %v, %v", name, node, r, err)
			}
		}
	}
}

type brokenNodes struct {
	corelisters.NodeLister
	err error
}

func (b brokenNodes) Get(string) (*v1.Node, error)             { return nil, b.err }
func (b brokenNodes) List(labels.Selector) ([]*v1.Node, error) { return nil, b.err }

type brokenCSINodes struct {
	storagelisters.CSINodeLister
	err error
}

func (b brokenCSINodes) Get(string) (*storagev1.CSINode, error)             { return nil, b.err }
func (b brokenCSINodes) List(labels.Selector) ([]*storagev1.CSINode, error) { return nil, b.err }

func TestASourceTellsOfChangesAndOfNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		client := fake.NewClientset()
		factory := informers.NewSharedInformerFactory(client, 0)
		nodes, csiNodes := factory.Core().V1().Nodes(), factory.Storage().V1().CSINodes()
		b, err := New(Config{DriverName: driver, Nodes: nodes.Lister(), CSINodes: csiNodes.Lister()})
		if err != nil {
			t.Fatal(err)
		}
		source, err := NewSource(b, nodes.Informer(), csiNodes.Informer())
		if err != nil {
			t.Fatal(err)
		}
		if source.HasSynced() {
			t.Error("synced before the informers were started")
		}
		stop := make(chan struct{})
		factory.Start(stop)
		defer factory.Shutdown()
		defer close(stop)
		synctest.Wait()
		if !source.HasSynced() {
			t.Error("not synced")
		}
		var calls atomic.Int32
		unsubscribe, err := source.Subscribe(func() { calls.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		told := func(what string, want bool, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := calls.Swap(0) > 0; got != want {
				t.Errorf("%s: told %v, want %v", what, got, want)
			}
		}
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: pairs("zone=a")}}
		csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driver, TopologyKeys: []string{"zone", "rack"}}}}}
		_, err = client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		told("a new node", true, err)
		_, err = client.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{})
		told("a new CSINode", true, err)
		node.Status.Phase = v1.NodeRunning
		_, err = client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		told("a heartbeat", false, err)
		node.Labels["rack"] = "1"
		_, err = client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		told("a label", true, err)
		if got := listed(t, source); got != "rack=1,zone=a" {
			t.Errorf("segments are %s", got)
		}
		csiNode.Spec.Drivers = append(csiNode.Spec.Drivers, storagev1.CSINodeDriver{Name: "other"})
		_, err = client.StorageV1().CSINodes().Update(ctx, csiNode, metav1.UpdateOptions{})
		told("another driver", false, err)
		csiNode.Spec.Drivers[0].TopologyKeys = []string{"zone"}
		_, err = client.StorageV1().CSINodes().Update(ctx, csiNode, metav1.UpdateOptions{})
		told("other keys", true, err)
		told("a CSINode gone", true, client.StorageV1().CSINodes().Delete(ctx, "n1", metav1.DeleteOptions{}))
		unsubscribe()
		synctest.Wait()
		calls.Store(0)
		told("a node gone, after the end", false, client.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}))
	})
}

func TestASourceNeedsItsParts(t *testing.T) {
	if _, err := NewSource(nil, nil, nil); err == nil {
		t.Error("a source of nothing")
	}
}

func TestAFixedSource(t *testing.T) {
	f := Fixed{SegmentOf(pairs("zone=b")), SegmentOf(pairs("zone=a")), SegmentOf(pairs("zone=b"))}
	if got := listed(t, f); got != "zone=a; zone=b" || !f.HasSynced() {
		t.Errorf("got %s", got)
	}
	if f[0] != SegmentOf(pairs("zone=b")) {
		t.Error("the caller's slice was sorted")
	}
	unsubscribe, err := f.Subscribe(func() { t.Error("it never changes") })
	if err != nil {
		t.Fatal(err)
	}
	unsubscribe()
}
