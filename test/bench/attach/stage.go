package main

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	nodes = 10
	size  = 1 << 30
)

// stage is a control plane with a driver, nodes without a kubelet, and nobody
// who attaches yet.
type stage struct {
	*rig.Rig
	// admin has no limit of its own and speaks protobuf.
	admin kubernetes.Interface
	turns int
}

// enter starts it and makes the volumes at the driver, which all runs share.
func enter(ctx context.Context, cfg rig.Config, volumes int) (_ *stage, err error) {
	cfg.Values = append(cfg.Values, "sidecar.controllers={attacher}")
	r, err := rig.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	w := &stage{Rig: r}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	if w.admin, err = world.Admin(r.Cluster.RESTConfig(), ""); err != nil {
		return nil, err
	}
	if err := w.makeNodes(ctx); err != nil {
		return nil, err
	}
	return w, world.Each(volumes, func(i int) error {
		_, err := r.Driver.CreateVolume(ctx, volumeName(i), size)
		return err
	})
}

func volumeName(i int) string { return fmt.Sprintf("volume-%04d", i) }
func nodeName(i int) string   { return fmt.Sprintf("node-%02d", i%nodes) }

// makeNodes registers the nodes with the API server and with the driver.
func (w *stage) makeNodes(ctx context.Context) error {
	store, err := state.New(state.Config{Dir: w.StateDir()})
	if err != nil {
		return err
	}
	for i := range nodes {
		name := nodeName(i)
		node := &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
			Status:     v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}},
		}
		if _, err := w.admin.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating node %s: %w", name, err)
		}
		csiNode := &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: rig.Driver, NodeID: name}}},
		}
		if _, err := w.admin.StorageV1().CSINodes().Create(ctx, csiNode, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating CSINode %s: %w", name, err)
		}
		if err := store.Register(ctx, name); err != nil {
			return err
		}
	}
	return nil
}
