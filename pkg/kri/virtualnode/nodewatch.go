package virtualnode

import (
	"context"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// nodeWatch sees the own Node. It implements mount.NodeWatcher.
type nodeWatch struct {
	informer cache.SharedIndexInformer
	name     string
	onGone   func()

	mu      sync.Mutex
	node    *v1.Node
	changed chan struct{}
}

func newNodeWatch(cfg *Config, onGone func()) *nodeWatch {
	informer := coreinformers.NewFilteredNodeInformer(cfg.Client, 0, cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, cfg.Name).String()
		})
	return &nodeWatch{informer: informer, name: cfg.Name, onGone: onGone, changed: make(chan struct{})}
}

// Run watches until ctx ends.
func (w *nodeWatch) Run(ctx context.Context) error {
	_, err := w.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.set,
		UpdateFunc: func(_, obj any) { w.set(obj) },
		DeleteFunc: func(any) { w.onGone() },
	})
	if err != nil {
		return err
	}
	w.informer.RunWithContext(ctx)
	return nil
}

// Node returns the latest Node and a channel that is closed with the next.
func (w *nodeWatch) Node() (*v1.Node, <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.node, w.changed
}

func (w *nodeWatch) set(obj any) {
	node, ok := obj.(*v1.Node)
	if !ok || node.Name != w.name {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = node
	close(w.changed)
	w.changed = make(chan struct{})
}
