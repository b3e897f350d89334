package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/capability"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// NodePublishVolume bind mounts what is staged at the target path.
func (s *Server) NodePublishVolume(ctx context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	path, err := checkPath("target_path", request.GetTargetPath())
	if err != nil {
		return nil, err
	}
	if err := capability.Check(request.GetVolumeCapability()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	staging, err := checkPath("staging_target_path", request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	publication, err := s.publication(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	want := state.Target{Volume: publication.Volume, Staging: staging, ReadOnly: request.GetReadonly()}
	if err := s.publish(ctx, publication, path, want); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publish stages again if the mount there is dead or of an earlier publication,
// and then binds it to the target. With mu held.
func (s *Server) publish(ctx context.Context, publication state.Publication, path string, want state.Target) error {
	node, err := s.store.Node(s.id)
	if err != nil {
		return failure(err)
	}
	if node.Stages[want.Staging].Volume != want.Volume {
		return status.Errorf(codes.FailedPrecondition, "volume %s is not staged at %s", want.Volume, want.Staging)
	}
	if err := onlyTarget(publication, node, path); err != nil {
		return err
	}
	if err := s.stage(ctx, publication, want.Staging); err != nil {
		return err
	}
	top, mounted, err := mounts.At(path)
	if err != nil {
		return failure(err)
	}
	if mounted && top.Identity() == s.staged[want.Staging].identity {
		if was, ok := node.Targets[path]; ok && was != want {
			return status.Errorf(codes.AlreadyExists, "volume %s is published at %s in another way", want.Volume, path)
		}
		return nil
	}
	return s.bind(ctx, publication, path, want)
}

// onlyTarget keeps the promise of the single-writer mode within the node.
func onlyTarget(publication state.Publication, node state.Node, path string) error {
	if publication.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER.String() {
		return nil
	}
	for other, target := range node.Targets {
		if other != path && target.Volume == publication.Volume {
			return status.Errorf(codes.FailedPrecondition,
				"volume %s has a single writer, and is published at %s", publication.Volume, other)
		}
	}
	return nil
}

func (s *Server) bind(ctx context.Context, publication state.Publication, path string, want state.Target) error {
	if err := mounts.Detach(path); err != nil {
		return failure(err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return failure(fmt.Errorf("making the target path: %w", err))
	}
	if err := mounts.Bind(want.Staging, path, want.ReadOnly); err != nil {
		return failure(err)
	}
	err := s.store.UpdateNode(ctx, s.id, func(node *state.Node) { node.Targets[path] = want },
		state.Entry{Op: state.OpNodePublish, Volume: want.Volume, Generation: publication.Generation,
			ReadOnly: want.ReadOnly, Path: path})
	if err != nil {
		return failure(errors.Join(err, mounts.Detach(path)))
	}
	return nil
}

// NodeUnpublishVolume takes the mount off the target path and removes it.
func (s *Server) NodeUnpublishVolume(ctx context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	path, err := checkPath("target_path", request.GetTargetPath())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := mounts.Detach(path); err != nil {
		return nil, failure(err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, failure(fmt.Errorf("removing the target path: %w", err))
	}
	node, err := s.store.Node(s.id)
	if err != nil {
		return nil, failure(err)
	}
	if was, ok := node.Targets[path]; ok {
		err := s.store.UpdateNode(ctx, s.id, func(node *state.Node) { delete(node.Targets, path) },
			state.Entry{Op: state.OpNodeUnpublish, Volume: was.Volume, Path: path})
		if err != nil {
			return nil, failure(err)
		}
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}
