package source

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/runner"
)

// sweepEach sweeps at once and then at each interval, until ctx ends.
func (p *Protection) sweepEach(ctx context.Context) {
	if p.cfg.SweepInterval == 0 {
		<-ctx.Done()
		return
	}
	ticker := p.cfg.Clock.NewTicker(p.cfg.SweepInterval)
	defer ticker.Stop()
	said := ""
	for {
		said = p.sweepOnce(ctx, said)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// sweepOnce sweeps, and returns what kept it from that. It is logged only when it
// is another one than said before: a server without the API of snapshots is none
// to be told of each time.
func (p *Protection) sweepOnce(ctx context.Context, said string) (says string) {
	err := runner.Safely(func() error { return p.sweep(ctx) })
	if err == nil || ctx.Err() != nil {
		return ""
	}
	logger := klog.FromContext(ctx).WithValues("again", p.cfg.SweepInterval)
	var caught *runner.PanicError
	switch kind := kindOfFailure(err); {
	case errors.As(err, &caught):
		logger.Error(err, "Caught a panic", "stack", string(caught.Stack))
		return ""
	case kind == said:
		return said
	case noSuchAPI(err):
		logger.V(2).Info("The API server has no VolumeSnapshots; volumes can be made of them once it has")
		return kind
	default:
		logger.Error(err, "Cannot look for finalizers that were left on VolumeSnapshots")
		return kind
	}
}

// kindOfFailure is the same for two failures of which one need be told.
func kindOfFailure(err error) string {
	if noSuchAPI(err) {
		return "no such API"
	}
	return string(apierrors.ReasonForError(err))
}

// sweep has all VolumeSnapshots looked at that have our finalizer. Most of them
// are in no cache: a snapshot is needed once in a while, and by few.
func (p *Protection) sweep(ctx context.Context) error {
	if !p.cfg.IsLeader() {
		return nil
	}
	page := ""
	for {
		list, err := p.live.list(ctx, snapshotResource, page)
		switch {
		case apierrors.IsForbidden(err):
			return fmt.Errorf("listing VolumeSnapshots: %w; grant the sidecar's ServiceAccount list on %s", err, snapshotResource.GroupResource())
		case err != nil:
			return fmt.Errorf("listing VolumeSnapshots: %w", err)
		}
		for i := range list.Items {
			if slices.Contains(list.Items[i].GetFinalizers(), SnapshotFinalizer) {
				p.enqueue(key{Snapshot, list.Items[i].GetNamespace(), list.Items[i].GetName()})
			}
		}
		if page = list.GetContinue(); page == "" {
			return nil
		}
	}
}
