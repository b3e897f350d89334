package topology

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"
)

// Source is the segments of a driver with word of their changes.
type Source struct {
	builder         *Builder
	nodes, csiNodes cache.SharedIndexInformer
}

// NewSource makes a Source of a Builder and the informers that its listers read.
func NewSource(builder *Builder, nodes, csiNodes cache.SharedIndexInformer) (*Source, error) {
	if builder == nil || nodes == nil || csiNodes == nil {
		return nil, errors.New("topology source: the builder and both informers must be set")
	}
	return &Source{builder: builder, nodes: nodes, csiNodes: csiNodes}, nil
}

// Segments returns the segments now, see Builder.
func (s *Source) Segments() ([]Segment, error) { return s.builder.Segments() }

// HasSynced reports whether the informers know all that there is.
func (s *Source) HasSynced() bool { return s.nodes.HasSynced() && s.csiNodes.HasSynced() }

// Subscribe has changed called whenever Segments may have another answer:
// heartbeats of nodes are not passed on. It must not block. The error tells that
// an informer has been stopped.
func (s *Source) Subscribe(changed func()) (unsubscribe func(), err error) {
	onNode, err := s.nodes.AddEventHandler(handler(changed, func(a, b *v1.Node) bool { return maps.Equal(a.Labels, b.Labels) }))
	if err != nil {
		return nil, fmt.Errorf("watching nodes for their labels: %w", err)
	}
	onCSINode, err := s.csiNodes.AddEventHandler(handler(changed, func(a, b *storagev1.CSINode) bool {
		return slices.Equal(s.builder.keysOf(a), s.builder.keysOf(b))
	}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watching CSINodes for topology keys: %w", err), s.nodes.RemoveEventHandler(onNode))
	}
	return func() {
		// They fail for a handler of another informer only.
		_ = s.nodes.RemoveEventHandler(onNode)
		_ = s.csiNodes.RemoveEventHandler(onCSINode)
	}, nil
}

// handler passes on everything but an update between equal objects.
func handler[T any](changed func(), equal func(a, b T) bool) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, after any) {
			a, okA := before.(T)
			b, okB := after.(T)
			if okA && okB && equal(a, b) {
				return
			}
			changed()
		},
	}
}

// Fixed is a source whose segments never change: for one node, or, with the zero
// Segment, for a driver without topology.
type Fixed []Segment

// Segments returns them.
func (f Fixed) Segments() ([]Segment, error) { return distinct(slices.Clone(f)), nil }

// HasSynced is always true.
func (Fixed) HasSynced() bool { return true }

// Subscribe never calls.
func (Fixed) Subscribe(func()) (unsubscribe func(), err error) { return func() {}, nil }
