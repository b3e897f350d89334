package failover

import (
	"fmt"
	"maps"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
)

// pokes turns informer events into "look again". While no volume is unwell,
// only nodes matter, for the breaker; and of pods and attachments only those
// on the nodes in question do.
type pokes struct {
	c      chan struct{}
	synced []cache.InformerSynced
	// nodes are those that the last decision was about; nil when it was about
	// nothing.
	nodes atomic.Pointer[map[string]bool]
}

func newPokes(f informers.SharedInformerFactory) (*pokes, error) {
	p := &pokes{c: make(chan struct{}, 1)}
	core, storage := f.Core().V1(), f.Storage().V1()
	active := func(any) bool { return p.nodes.Load() != nil }
	for _, on := range []struct {
		informer cache.SharedIndexInformer
		what     string
		relevant func(obj any) bool
	}{
		{core.Pods().Informer(), "pods", p.podRelevant},
		{storage.VolumeAttachments().Informer(), "VolumeAttachments", p.attachmentRelevant},
		{core.PersistentVolumes().Informer(), "PersistentVolumes", active},
		{core.PersistentVolumeClaims().Informer(), "PersistentVolumeClaims", active},
		{core.Namespaces().Informer(), "Namespaces", active},
		{storage.CSIDrivers().Informer(), "CSIDrivers", active},
		{storage.CSINodes().Informer(), "CSINodes", active},
		{core.Nodes().Informer(), "Nodes", func(any) bool { return true }},
	} {
		reg, err := on.informer.AddEventHandler(p.handler(on.relevant))
		if err != nil {
			return nil, fmt.Errorf("watching %s: %w", on.what, err)
		}
		p.synced = append(p.synced, reg.HasSynced)
	}
	return p, nil
}

func (p *pokes) handler(relevant func(obj any) bool) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if relevant(obj) {
				p.poke()
			}
		},
		UpdateFunc: func(before, after any) {
			if relevant(after) && !heartbeat(before, after) {
				p.poke()
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if relevant(obj) {
				p.poke()
			}
		},
	}
}

func (p *pokes) poke() {
	select {
	case p.c <- struct{}{}:
	default:
	}
}

// watch narrows the events down to what the decision was about.
func (p *pokes) watch(d Decision) {
	if len(d.Answers) == 0 {
		p.nodes.Store(nil)
		return
	}
	nodes := map[string]bool{}
	for _, a := range d.Answers {
		nodes[a.Key.Node] = true
	}
	if old := p.nodes.Load(); old != nil && maps.Equal(*old, nodes) {
		return
	}
	p.nodes.Store(&nodes)
	// What happened on a node before it was watched may have been missed by
	// the decision just made.
	p.poke()
}

func (p *pokes) onNode(name string) bool {
	nodes := p.nodes.Load()
	return nodes != nil && (*nodes)[name]
}

func (p *pokes) podRelevant(obj any) bool {
	pod, ok := obj.(*v1.Pod)
	return ok && p.onNode(pod.Spec.NodeName)
}

func (p *pokes) attachmentRelevant(obj any) bool {
	va, ok := obj.(*storagev1.VolumeAttachment)
	return ok && p.onNode(va.Spec.NodeName)
}

// heartbeat reports whether an update of a node changes nothing that is read
// here.
func heartbeat(before, after any) bool {
	a, ok := before.(*v1.Node)
	if !ok {
		return false
	}
	b, ok := after.(*v1.Node)
	return ok && kube.NodeReady(a) == kube.NodeReady(b) &&
		apiequality.Semantic.DeepEqual(a.Spec, b.Spec) &&
		maps.Equal(a.Annotations, b.Annotations) && maps.Equal(a.Labels, b.Labels) &&
		a.DeletionTimestamp.Equal(b.DeletionTimestamp)
}
