package virtualnode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/process"
)

// retryError says when it makes sense to try again.
type retryError struct {
	error
	after time.Duration
}

func (e *retryError) Unwrap() error { return e.error }

// SyncPod mounts what the pod uses and starts the containers that are due.
func (p *podProvider) SyncPod(ctx context.Context, pod *v1.Pod, status *container.PodStatus, reasons *kri.ReasonCache) error {
	if err := p.remember(pod); err != nil {
		return err
	}
	plan := planPod(pod, status)
	if len(plan.Start) == 0 {
		return nil
	}
	var result container.PodSyncResult
	volumes, err := p.mounts.Mount(ctx, pod)
	if ctx.Err() != nil {
		return ctx.Err() // Not wanted any more: no failure of the pod's.
	}
	after := time.Duration(0)
	for _, c := range plan.Start {
		r := container.NewSyncResult(container.StartContainer, c.Name)
		result.AddSyncResult(r)
		if err != nil {
			r.Fail(container.ErrFailedMount, err.Error())
			continue
		}
		if wait := p.start(ctx, pod, c, status.FindContainerStatus(c.Name), volumes, r); wait > 0 && (after == 0 || wait < after) {
			after = wait
		}
	}
	if err != nil {
		p.cfg.Recorder.Event(pod, v1.EventTypeWarning, "FailedMount", err.Error())
	}
	if reasons != nil {
		reasons.Update(pod.UID, result)
	}
	if err := result.Error(); err != nil && after > 0 {
		return &retryError{error: err, after: after}
	}
	return result.Error()
}

// start starts one container and tells how into r. It returns how long a
// restart has to wait, if it has to.
func (p *podProvider) start(ctx context.Context, pod *v1.Pod, c *v1.Container, seen *container.Status, volumes map[string]string, r *container.SyncResult) time.Duration {
	id, attempt := process.ID{Pod: pod.UID, Name: c.Name}, 0
	if seen != nil {
		attempt = seen.RestartCount + 1
		if wait := p.restarts.remaining(id, seen.RestartCount, seen.StartedAt, seen.FinishedAt); wait > 0 {
			r.Fail(container.ErrCrashLoopBackOff, fmt.Sprintf("back-off restarting failed container %s of pod %s/%s after attempt %d",
				c.Name, pod.Namespace, pod.Name, seen.RestartCount))
			return wait
		}
	}
	spec, err := p.spec(pod, c, id, volumes)
	if err != nil {
		r.Fail(container.ErrCreateContainerConfig, err.Error())
		return 0
	}
	spec.Attempt = attempt
	if err := p.runtime.Start(spec); err != nil {
		r.Fail(container.ErrRunContainer, err.Error())
		return 0
	}
	klog.FromContext(ctx).Info("Started container", "container", c.Name, "attempt", attempt)
	p.cfg.Recorder.Eventf(pod, v1.EventTypeNormal, "Started", "Started container %s", c.Name)
	return 0
}

func (p *podProvider) spec(pod *v1.Pod, c *v1.Container, id process.ID, volumes map[string]string) (process.Spec, error) {
	if c.RestartPolicy != nil {
		return process.Spec{}, fmt.Errorf("container %s: restartable init containers are not supported", c.Name)
	}
	env, vars, err := environment(pod, c, map[string]string{
		"PATH": os.Getenv("PATH"), "HOSTNAME": pod.Name, "HOME": "/",
	})
	if err != nil {
		return process.Spec{}, err
	}
	argv, err := command(c, vars)
	if err != nil {
		return process.Spec{}, err
	}
	dir, err := prepareWorkDir(filepath.Join(p.runtime.Dir(id), "work"), c, volumes)
	if err != nil {
		return process.Spec{}, err
	}
	return process.Spec{ID: id, Argv: argv, Env: env, WorkDir: dir}, nil
}
