package topology

import (
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
)

// ErrNodeGone is wrapped by an error of Requirements when the Node or the
// CSINode of the selected node does not exist: the claim has to be scheduled
// again. Every other error is one that waiting, or a person, can mend.
var ErrNodeGone = errors.New("the selected node is gone")

// Config configures a Builder.
type Config struct {
	// DriverName is the name that CSINodes give the driver.
	DriverName string
	// Strict: a volume for a selected node is to be where that node is, and
	// nowhere else (--strict-topology).
	Strict bool
	// Immediate: a volume that no node was selected for may be in any place of
	// the cluster, and the driver is told of all (--immediate-topology). Without
	// it, it is told nothing unless the class has allowedTopologies.
	Immediate bool
	Nodes     corelisters.NodeLister
	CSINodes  storagelisters.CSINodeLister
}

// Builder builds requirements for one driver. It is safe for concurrent use.
type Builder struct{ cfg Config }

// New makes a Builder; the error tells what is wrong with the config.
func New(cfg Config) (*Builder, error) {
	switch {
	case cfg.DriverName == "":
		return nil, errors.New("topology config: DriverName must be set")
	case cfg.Nodes == nil || cfg.CSINodes == nil:
		return nil, errors.New("topology config: Nodes and CSINodes must be set")
	}
	return &Builder{cfg: cfg}, nil
}

// keysOf returns the topology keys that the driver has registered on a node,
// sorted and in memory of their own; none if it has not.
func (b *Builder) keysOf(node *storagev1.CSINode) []string {
	for i := range node.Spec.Drivers {
		if driver := &node.Spec.Drivers[i]; driver.Name == b.cfg.DriverName {
			keys := slices.Clone(driver.TopologyKeys)
			slices.Sort(keys)
			return slices.Compact(keys)
		}
	}
	return nil
}

// segmentOf reads the keys from the labels of a node; missing are the keys that
// it has no label for.
func segmentOf(node *v1.Node, keys []string) (segment map[string]string, missing []string) {
	segment = make(map[string]string, len(keys))
	for _, key := range keys {
		value, ok := node.Labels[key]
		if !ok {
			missing = append(missing, key)
			continue
		}
		segment[key] = value
	}
	return segment, missing
}

// selected returns the keys of the selected node and its segment.
func (b *Builder) selected(name string) (keys []string, segment map[string]string, err error) {
	node, err := b.cfg.Nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("node %q was selected for the claim and does not exist: %w", name, ErrNodeGone)
	} else if err != nil {
		return nil, nil, fmt.Errorf("getting the selected node %q: %w", name, err)
	}
	csiNode, err := b.cfg.CSINodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("CSINode %q of the node selected for the claim does not exist: %w", name, ErrNodeGone)
	} else if err != nil {
		return nil, nil, fmt.Errorf("getting the CSINode of the selected node %q: %w", name, err)
	}
	keys = b.keysOf(csiNode)
	if len(keys) == 0 {
		return nil, nil, fmt.Errorf("CSINode %q has no topologyKeys for driver %q: check that the driver's node plugin runs on that node and reports accessible_topology", name, b.cfg.DriverName)
	}
	for _, key := range keys {
		if errs := validation.IsQualifiedName(key); len(errs) > 0 {
			return nil, nil, fmt.Errorf("CSINode %q has for driver %q the topology key %q, which is no label key (%s): the driver's node plugin has to report another one", name, b.cfg.DriverName, key, errs[0])
		}
	}
	segment, missing := segmentOf(node, keys)
	if len(missing) > 0 {
		return nil, nil, fmt.Errorf("node %q lacks the labels %q that its CSINode names as topologyKeys of driver %q: the kubelet sets them when the driver registers, so restart the driver's node plugin there, or set them by hand", name, missing, b.cfg.DriverName)
	}
	return keys, segment, nil
}

// everyNode returns the segments of all nodes that have labels for all of the
// keys.
func (b *Builder) everyNode(keys []string) ([]Segment, error) {
	nodes, err := b.cfg.Nodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	var segments []Segment
	for _, node := range nodes {
		if segment, missing := segmentOf(node, keys); len(missing) == 0 {
			segments = append(segments, SegmentOf(segment))
		}
	}
	return distinct(segments), nil
}

// Segments returns the places where the driver is: the distinct segments of its
// nodes, sorted. A node counts with the keys that its CSINode has for the driver
// and its labels for them; one that lacks a label, or whose Node is gone, is
// left out until it is complete.
func (b *Builder) Segments() ([]Segment, error) {
	csiNodes, err := b.cfg.CSINodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing CSINodes: %w", err)
	}
	var segments []Segment
	for _, csiNode := range csiNodes {
		keys := b.keysOf(csiNode)
		if len(keys) == 0 {
			continue
		}
		node, err := b.cfg.Nodes.Get(csiNode.Name)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, fmt.Errorf("getting node %q: %w", csiNode.Name, err)
		}
		if segment, missing := segmentOf(node, keys); len(missing) == 0 {
			segments = append(segments, SegmentOf(segment))
		}
	}
	return distinct(segments), nil
}
