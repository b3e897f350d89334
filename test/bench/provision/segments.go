package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

const (
	// segmentKey is the driver's topology key, and the nodes' label.
	segmentKey = driverName + "/segment"
	// classes of the driver wait for their first consumer in CAPACITY.
	classes = 5
)

// spread makes nodes, each a segment of its own, and the classes. What is there
// but for these needs nothing: the class of the other settings waits for no node.
func (w *stage) spread(ctx context.Context, segments int) error {
	if err := world.Each(segments, func(i int) error { return w.addNode(ctx, fmt.Sprintf("bench-%04d", i)) }); err != nil {
		return err
	}
	for i := range classes {
		class := waitingClass(i)
		if _, err := w.admin.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating StorageClass %s: %w", class.Name, err)
		}
	}
	return nil
}

// waitingClass is the i-th; it tells the driver its name.
func waitingClass(i int) *storagev1.StorageClass {
	name, at := fmt.Sprintf("waiting-%d", i), storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driverName, VolumeBindingMode: &at,
		Parameters: map[string]string{csidriver.ClassParameter: name},
	}
}

// addNode makes a node with the driver.
func (w *stage) addNode(ctx context.Context, name string) error {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{segmentKey: name}}}
	if _, err := w.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating node %s: %w", name, err)
	}
	csiNode := &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: name, TopologyKeys: []string{segmentKey}}}},
	}
	if _, err := w.admin.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating CSINode %s: %w", name, err)
	}
	return nil
}
