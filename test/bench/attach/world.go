package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

const (
	nodes = 10
	// sideBySide is how many requests the bench has under way at once.
	sideBySide = 32
	size       = 1 << 30
)

// world is a control plane with a driver, nodes without a kubelet, and nobody
// who attaches yet.
type world struct {
	*rig.Rig
	// admin has no limit of its own and speaks protobuf.
	admin kubernetes.Interface
	turns int
}

// enter starts it and makes the volumes at the driver, which all runs share.
func enter(ctx context.Context, cfg rig.Config, volumes int) (_ *world, err error) {
	cfg.Values = append(cfg.Values, "sidecar.controllers={attacher}")
	r, err := rig.Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	w := &world{Rig: r}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Stop())
		}
	}()
	config := r.Cluster.RESTConfig()
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if w.admin, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	if err := w.makeNodes(ctx); err != nil {
		return nil, err
	}
	return w, each(volumes, func(i int) error {
		_, err := r.Driver.CreateVolume(ctx, volumeName(i), size)
		return err
	})
}

func volumeName(i int) string { return fmt.Sprintf("volume-%04d", i) }
func nodeName(i int) string   { return fmt.Sprintf("node-%02d", i%nodes) }

// makeNodes registers the nodes with the API server and with the driver.
func (w *world) makeNodes(ctx context.Context) error {
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

// each does something n times, side by side, in order of their beginning.
func each(n int, do func(i int) error) error {
	errs := make([]error, n)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(n, sideBySide) {
		wg.Go(func() {
			for i := range next {
				errs[i] = do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// pause waits; the error is the context's.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
