package node

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// Start registers the node, clears away what the process before left mounted and
// mounts again what is still published under the same publication. Files that
// were open in the old mounts stay dead.
func (s *Server) Start(ctx context.Context) error {
	if err := s.store.RegisterAt(ctx, s.id, s.at); err != nil {
		return fmt.Errorf("registering the node: %w", err)
	}
	node, err := s.store.Node(s.id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range node.Targets {
		if err := mounts.Detach(path); err != nil {
			return err
		}
	}
	for path := range node.Stages {
		if err := mounts.Detach(path); err != nil {
			return err
		}
	}
	for path, stage := range node.Stages {
		if err := s.restore(ctx, node, path, stage); err != nil {
			// The next call for this volume tries again, and tells its caller.
			klog.FromContext(ctx).Error(err, "Could not mount a volume again", "volume", stage.Volume, "path", path)
		}
	}
	return nil
}

// restore mounts one volume again, or forgets it if it was taken from this node
// meanwhile: whoever publishes it anew has to stage it anew.
func (s *Server) restore(ctx context.Context, node state.Node, path string, stage state.Stage) error {
	publication, err := s.publication(stage.Volume)
	if err != nil || publication.Generation != stage.Generation {
		return s.store.UpdateNode(ctx, s.id, func(node *state.Node) {
			delete(node.Stages, path)
			for target, was := range node.Targets {
				if was.Staging == path {
					delete(node.Targets, target)
				}
			}
		}, state.Entry{Op: state.OpUnstage, Volume: stage.Volume, Generation: stage.Generation, Path: path})
	}
	if err := s.stage(ctx, publication, path); err != nil {
		return err
	}
	for target, want := range node.Targets {
		if want.Staging == path {
			if err := s.publish(ctx, publication, target, want); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close unmounts everything at once; what is open fails from then on. The
// records stay, for the next process. It waits for the filesystems to end, at
// most until ctx does: one that was unmounted before, with files open, ends with
// these files.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for path, was := range s.staged {
		errs = append(errs, mounts.Abort(path))
		s.leave(was.mount)
	}
	clear(s.staged)
	node, err := s.store.Node(s.id)
	errs = append(errs, err)
	for path := range node.Targets {
		errs = append(errs, mounts.Detach(path))
	}
	for _, mount := range s.leaving {
		select {
		case <-mount.Done():
		case <-ctx.Done():
			// They end with this process at the latest.
			klog.FromContext(ctx).Info("Files on an unmounted volume are still open")
			return errors.Join(errs...)
		}
	}
	s.leaving = nil
	return errors.Join(errs...)
}
