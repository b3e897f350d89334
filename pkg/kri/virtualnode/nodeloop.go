package virtualnode

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
)

// nodeLoop drives a NodeProvider: it registers the node, keeps its Lease and
// writes its status.
type nodeLoop struct {
	cfg      *Config
	provider kri.NodeProvider
	// acknowledged is told of the volumesInUse that the API has.
	acknowledged func([]v1.UniqueVolumeName)
	changed      chan struct{} // cap 1: the status is to be written
	registered   chan struct{} // closed once the node is there
	pinger       *pinger
	lease        *leaseKeeper

	// writing serialises writes, so that the newest list is always the last.
	writing sync.Mutex
	status  *v1.NodeStatus // as written last, nil before
}

func newNodeLoop(cfg *Config, provider kri.NodeProvider, acknowledged func([]v1.UniqueVolumeName)) *nodeLoop {
	return &nodeLoop{
		cfg: cfg, provider: provider, acknowledged: acknowledged,
		changed: make(chan struct{}, 1), registered: make(chan struct{}),
		pinger: newPinger(provider, cfg.PingTimeout), lease: newLeaseKeeper(cfg),
	}
}

// Run registers the node and keeps it alive until ctx ends.
func (l *nodeLoop) Run(ctx context.Context) error {
	l.provider.SetStatusUpdateCallback(ctx, func(*v1.Node) { l.notify() })
	if !l.retry(ctx, "Registering the node failed, will retry", l.register) {
		return nil
	}
	klog.FromContext(ctx).Info("Registered the node", "node", l.cfg.Name)
	close(l.registered)
	var wg sync.WaitGroup
	wg.Go(func() { l.keepLease(ctx) })
	wg.Go(func() { l.keepStatus(ctx) })
	wg.Wait()
	l.pinger.wait()
	return nil
}

// retry repeats op until it succeeds (true) or ctx ends (false).
func (l *nodeLoop) retry(ctx context.Context, message string, op func(context.Context) error) bool {
	for failures := 1; ctx.Err() == nil; failures++ {
		err := op(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		klog.FromContext(ctx).Info(message, "failures", failures, "err", err)
		timer := l.cfg.Clock.NewTimer(retryDelay(failures))
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
	return false
}

func (l *nodeLoop) notify() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// nodeGone makes the node be registered again.
func (l *nodeLoop) nodeGone() {
	l.writing.Lock()
	l.status = nil
	l.writing.Unlock()
	l.notify()
}

// register makes the Node object exist with our labels and status.
func (l *nodeLoop) register(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.registerLocked(ctx)
}

func (l *nodeLoop) registerLocked(ctx context.Context) error {
	want := l.provider.ConfigureNode(ctx, l.cfg.Name)
	reqCtx, cancel := context.WithTimeout(ctx, l.cfg.APITimeout)
	defer cancel()
	nodes := l.cfg.Client.CoreV1().Nodes()
	_, err := nodes.Create(reqCtx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		var patch []byte
		patch, err = json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels, "annotations": want.Annotations}})
		if err == nil {
			_, err = nodes.Patch(reqCtx, l.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("registering the node: %w", err)
	}
	return l.patchStatus(ctx, &want.Status)
}

// ReportNode writes the status and returns when the API has it. It implements
// mount.NodeReporter.
func (l *nodeLoop) ReportNode(ctx context.Context) error { return l.write(ctx, true) }

// write brings the status up to date; unless forced, only a change is written.
func (l *nodeLoop) write(ctx context.Context, force bool) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.status == nil {
		return l.registerLocked(ctx)
	}
	status := l.status.DeepCopy()
	if changed := l.provider.RefreshNodeStatus(ctx, status); !changed && !force {
		return nil
	}
	err := l.patchStatus(ctx, status)
	if apierrors.IsNotFound(err) {
		return l.registerLocked(ctx)
	}
	return err
}

// patchStatus writes only what is ours: conditions are merged by type, and
// volumesAttached is left out. l.writing is held.
func (l *nodeLoop) patchStatus(ctx context.Context, status *v1.NodeStatus) error {
	inUse := status.VolumesInUse
	if inUse == nil {
		inUse = []v1.UniqueVolumeName{} // An empty list has to be said.
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"capacity": status.Capacity, "allocatable": status.Allocatable, "conditions": status.Conditions,
		"addresses": status.Addresses, "nodeInfo": status.NodeInfo, "volumesInUse": inUse,
	}})
	if err != nil {
		return fmt.Errorf("encoding the node's status: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.APITimeout)
	defer cancel()
	if _, err := l.cfg.Client.CoreV1().Nodes().Patch(ctx, l.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("writing the node's status: %w", err)
	}
	l.status = status
	l.acknowledged(inUse)
	return nil
}

func (l *nodeLoop) keepStatus(ctx context.Context) {
	ticker := l.cfg.Clock.NewTicker(l.cfg.NodeStatusInterval)
	defer ticker.Stop()
	for {
		force := false
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
		case <-ticker.C():
			// A node that cannot tell how it is does not tell.
			if force = l.pinger.ping(ctx) == nil; !force {
				continue
			}
		}
		l.retry(ctx, "Writing the node's status failed, will retry", func(ctx context.Context) error { return l.write(ctx, force) })
	}
}

func (l *nodeLoop) keepLease(ctx context.Context) {
	ticker := l.cfg.Clock.NewTicker(l.cfg.LeaseRenewInterval)
	defer ticker.Stop()
	for {
		l.renewLease(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

func (l *nodeLoop) renewLease(ctx context.Context) {
	if err := l.pinger.ping(ctx); err != nil {
		if ctx.Err() == nil {
			klog.FromContext(ctx).Info("Lease not renewed since the node does not answer", "err", err)
		}
		return
	}
	reqCtx, cancel := context.WithTimeout(ctx, min(l.cfg.APITimeout, max(time.Second, l.cfg.LeaseRenewInterval)))
	defer cancel()
	if err := l.lease.renew(reqCtx); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Lease not renewed", "err", err)
	}
}
