package virtualnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/mount"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/process"
)

// podProvider implements kri.PodProvider with processes and mounts.
type podProvider struct {
	cfg      *Config
	runtime  *process.Runtime
	mounts   *mount.Manager
	health   *healthStore
	restarts *restarts

	mu   sync.Mutex
	pods map[types.UID]*v1.Pod // those synced, and those found on disk
}

var _ kri.PodProvider = (*podProvider)(nil)

func newPodProvider(cfg *Config, runtime *process.Runtime, mounts *mount.Manager, health *healthStore) *podProvider {
	return &podProvider{
		cfg: cfg, runtime: runtime, mounts: mounts, health: health,
		restarts: newRestarts(cfg.Clock, cfg.RestartBackoff, cfg.RestartBackoffMax),
		pods:     map[types.UID]*v1.Pod{},
	}
}

// Start takes over what an earlier process left.
func (p *podProvider) Start(ctx context.Context) error {
	paths, err := filepath.Glob(filepath.Join(p.cfg.RootDir, "pods", "*", podFile))
	if err != nil {
		return err
	}
	for _, path := range paths {
		pod := &v1.Pod{}
		if err := process.ReadJSON(path, pod); err != nil {
			return fmt.Errorf("reading a pod of an earlier run: %w", err)
		}
		p.pods[pod.UID] = pod
	}
	adopted, killed, err := p.runtime.Adopt()
	if err != nil {
		return fmt.Errorf("adopting containers: %w", err)
	}
	klog.FromContext(ctx).Info("Adopted what an earlier run left", "pods", len(p.pods), "containers", adopted, "strayProcessesKilled", killed)
	return nil
}

// Stop ends the watch over processes; they go on.
func (p *podProvider) Stop() { p.runtime.Close() }

// KillPod stops all containers of the pod side by side.
func (p *podProvider) KillPod(ctx context.Context, pod *v1.Pod, running container.Pod, override *int64) error {
	if len(running.Containers) == 0 {
		return nil
	}
	if err := p.cfg.Faults.Hang(ctx, nodectl.HangKill); err != nil {
		return fmt.Errorf("killing pod: %w", err)
	}
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if override != nil {
		grace = *override
	}
	var group errgroup.Group
	for _, c := range running.Containers {
		group.Go(func() error {
			p.cfg.Recorder.Eventf(pod, v1.EventTypeNormal, "Killing", "Stopping container %s", c.Name)
			return p.runtime.Stop(ctx, process.ID{Pod: pod.UID, Name: c.Name}, time.Duration(grace)*time.Second)
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("killing pod: %w", err)
	}
	return nil
}

// DeletePod unmounts. Logs and states stay until the pod's object is gone, when
// CleanupPods removes them.
func (p *podProvider) DeletePod(ctx context.Context, pod *v1.Pod) error {
	if err := p.mounts.Unmount(ctx, pod.UID); err != nil {
		return fmt.Errorf("unmounting volumes of pod: %w", err)
	}
	p.health.forget(pod.UID)
	return p.mounts.RemoveLocal(pod.UID)
}

// RefreshPodStatus adds the health of the pod's volumes.
func (p *podProvider) RefreshPodStatus(pod *v1.Pod, status *v1.PodStatus) {
	if health, ok := p.health.get(pod.UID); ok {
		status.VolumeHealth = health
	}
}

// GetPodStatus tells what is known of the pod's containers.
func (p *podProvider) GetPodStatus(_ context.Context, pod *v1.Pod) (*container.PodStatus, error) {
	out := &container.PodStatus{ID: pod.UID, Name: pod.Name, Namespace: pod.Namespace, IPs: []string{nodeIP}}
	for _, rec := range p.runtime.Records(pod.UID) {
		out.ContainerStatuses = append(out.ContainerStatuses, containerStatus(rec))
	}
	return out, nil
}

func containerStatus(rec process.Record) *container.Status {
	st := &container.Status{
		ID: containerID(rec), Name: rec.Name, State: container.StateRunning, StartedAt: rec.StartedAt, RestartCount: rec.Attempt,
	}
	if rec.Exited {
		st.State, st.FinishedAt, st.ExitCode, st.Signal = container.StateExited, rec.FinishedAt, rec.ExitCode, rec.Signal
	}
	if rec.Lost {
		st.Reason, st.Message = "ContainerStatusUnknown", "The container ended while no agent watched it"
	}
	return st
}

func containerID(rec process.Record) string {
	return fmt.Sprintf("process://%s/%s/%d", rec.Pod, rec.Name, rec.Attempt)
}

// GetPods lists pods by what is on record, whether or not the API knows them.
func (p *podProvider) GetPods(_ context.Context, all bool) ([]*container.Pod, error) {
	uids, err := p.onRecord()
	if err != nil {
		return nil, err
	}
	var out []*container.Pod
	for _, uid := range sets.List(uids) {
		pod := &container.Pod{ID: uid}
		if known := p.known(uid); known != nil {
			pod.Name, pod.Namespace = known.Name, known.Namespace
		}
		for _, rec := range p.runtime.Records(uid) {
			st := containerStatus(rec)
			pod.Containers = append(pod.Containers, &container.Container{ID: st.ID, Name: st.Name, State: st.State})
		}
		if all || pod.Running() {
			out = append(out, pod)
		}
	}
	return out, nil
}

func (p *podProvider) known(uid types.UID) *v1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

const podFile = "pod.json"

// remember keeps the pod on disk, so that a later process knows whose leftovers
// it finds.
func (p *podProvider) remember(pod *v1.Pod) error {
	if p.known(pod.UID) != nil {
		return nil
	}
	if string(pod.UID) == "" || filepath.Base(string(pod.UID)) != string(pod.UID) {
		return errors.New("the pod's UID is no file name")
	}
	dir := filepath.Join(p.cfg.RootDir, "pods", string(pod.UID))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the pod's directory: %w", err)
	}
	if err := process.WriteJSON(filepath.Join(dir, podFile), pod); err != nil {
		return fmt.Errorf("keeping the pod: %w", err)
	}
	p.health.seed(pod.UID, pod.Status.VolumeHealth)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[pod.UID] = pod
	return nil
}
