package virtualnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/process"
)

// leftoverGrace, in seconds, is for containers whose pod is gone from the API:
// nothing waits for them, and somebody may already run in their place.
const leftoverGrace int64 = 1

// CleanupPods kills, unmounts and removes what neither the API nor a worker
// knows.
func (p *podProvider) CleanupPods(ctx context.Context, pods []*v1.Pod, running []*container.Pod, possiblyRunning map[types.UID]sets.Empty) error {
	wanted := sets.New[types.UID]()
	for _, pod := range pods {
		wanted.Insert(pod.UID)
	}
	var errs []error
	for _, pod := range running {
		if _, busy := possiblyRunning[pod.ID]; busy || wanted.Has(pod.ID) {
			continue
		}
		if err := p.cleanup(ctx, pod.ID, *pod); err != nil {
			errs = append(errs, fmt.Errorf("cleaning up after pod %s: %w", pod.ID, err))
		}
	}
	return errors.Join(errs...)
}

// onRecord returns the UIDs of all pods of which anything is left.
func (p *podProvider) onRecord() (sets.Set[types.UID], error) {
	out := sets.New(p.runtime.Pods()...).Insert(p.mounts.Users()...)
	entries, err := os.ReadDir(filepath.Join(p.cfg.RootDir, "pods"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing pod directories: %w", err)
	}
	for _, e := range entries {
		out.Insert(types.UID(e.Name()))
	}
	return out, nil
}

func (p *podProvider) cleanup(ctx context.Context, uid types.UID, running container.Pod) error {
	pod := p.known(uid)
	if pod == nil {
		pod = &v1.Pod{}
		pod.UID = uid
	}
	running.Containers = onlyRunning(running.Containers)
	if len(running.Containers) > 0 {
		klog.FromContext(ctx).Info("Killing containers of a pod that is gone", "pod", klog.KObj(pod), "uid", uid)
	}
	if err := p.KillPod(ctx, pod, running, ptr.To(leftoverGrace)); err != nil {
		return err
	}
	if uid == "" { // Volumes without a pod.
		return p.mounts.Unmount(ctx, uid)
	}
	if err := p.DeletePod(ctx, pod); err != nil {
		return err
	}
	return p.remove(uid)
}

func onlyRunning(in []*container.Container) []*container.Container {
	var out []*container.Container
	for _, c := range in {
		if c.State == container.StateRunning {
			out = append(out, c)
		}
	}
	return out
}

// remove deletes the pod's directory. The volumes in it are gone; links in
// working directories are removed, not followed.
func (p *podProvider) remove(uid types.UID) error {
	for _, rec := range p.runtime.Records(uid) {
		p.restarts.forget(process.ID{Pod: uid, Name: rec.Name})
	}
	if err := p.runtime.Forget(uid); err != nil {
		return err
	}
	dir := filepath.Join(p.cfg.RootDir, "pods", string(uid))
	if err := os.RemoveAll(filepath.Join(dir, "containers")); err != nil {
		return fmt.Errorf("removing containers: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, podFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the pod's record: %w", err)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the pod's directory: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, uid)
	return nil
}
