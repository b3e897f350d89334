package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/capability"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fusefs"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// NodeStageVolume mounts the volume at the staging path.
func (s *Server) NodeStageVolume(ctx context.Context, request *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	path, err := checkPath("staging_target_path", request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	if err := capability.Check(request.GetVolumeCapability()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	publication, err := s.publication(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.stage(ctx, publication, path); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// stage mounts the volume, unless it is mounted there under this publication. A
// mount that is dead, or of an earlier publication, is replaced. With mu held.
func (s *Server) stage(ctx context.Context, publication state.Publication, path string) error {
	top, mounted, err := mounts.At(path)
	if err != nil {
		return failure(err)
	}
	if now, ok := s.staged[path]; ok && mounted && now.alive() && top.Identity() == now.identity {
		if now.volume != publication.Volume {
			return status.Errorf(codes.AlreadyExists, "volume %s is staged at %s", now.volume, path)
		}
		if now.generation == publication.Generation {
			return nil
		}
	}
	if err := s.unmount(path); err != nil {
		return failure(err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return failure(fmt.Errorf("making the staging path: %w", err))
	}
	fresh, err := s.attach(ctx, publication, path)
	if err != nil {
		return err
	}
	s.staged[path] = fresh
	err = s.store.UpdateNode(ctx, s.id, func(node *state.Node) {
		node.Stages[path] = state.Stage{Volume: fresh.volume, Generation: fresh.generation}
	}, state.Entry{Op: state.OpStage, Volume: fresh.volume, Generation: fresh.generation, Path: path})
	if err != nil {
		return failure(errors.Join(err, s.unmount(path)))
	}
	return nil
}

// attach mounts the volume's filesystem at path.
func (s *Server) attach(ctx context.Context, publication state.Publication, path string) (staged, error) {
	opened, err := s.store.Gate(publication.Volume, s.id)
	if err != nil {
		return staged{}, failure(err)
	}
	if opened.Broken() {
		return staged{}, errors.Join(status.Errorf(codes.Unavailable,
			"the path from node %s to volume %s is lost", s.id, publication.Volume), opened.Close())
	}
	fresh := staged{volume: publication.Volume, generation: publication.Generation}
	fresh.mount, err = s.mount(fusefs.Config{
		Dir:        s.store.DataDir(publication.Volume),
		MountPoint: path,
		Source:     fmt.Sprintf("%s:%s:%d", publication.Volume, s.id, publication.Generation),
		Gate:       opened,
		Generation: publication.Generation,
		ReadOnly:   publication.ReadOnly || publication.Mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY.String(),
		Logger:     klog.FromContext(ctx),
	})
	if err != nil && noFUSE(err) {
		s.tellUnsafe(ctx, err)
		fresh.mount, err = nil, mounts.Bind(s.store.DataDir(publication.Volume), path, false)
	}
	if err != nil {
		return staged{}, failure(err)
	}
	top, mounted, err := mounts.At(path)
	if err != nil || !mounted {
		return staged{}, failure(errors.Join(err, fmt.Errorf("%s vanished from the mount table", path), s.unmount(path)))
	}
	fresh.identity = top.Identity()
	return fresh, nil
}

// noFUSE says whether a mount failed since the machine has no FUSE, or does not
// let us use it. Nothing else may lead to a mount without a fence.
func noFUSE(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) || errors.Is(err, os.ErrNotExist) ||
		errors.Is(err, os.ErrPermission)
}

func (s *Server) tellUnsafe(ctx context.Context, err error) {
	s.fencing.Do(func() {
		close(s.unsafe)
		klog.FromContext(ctx).Error(err, "FUSE is not available: volumes are bind mounted and NOTHING IS FENCED. "+
			"A node goes on writing after ControllerUnpublishVolume. Give this process /dev/fuse and CAP_SYS_ADMIN", "node", s.id)
	})
}

// NodeUnstageVolume takes the mount off the staging path. What is open stays
// open, and stays behind the gate.
func (s *Server) NodeUnstageVolume(ctx context.Context, request *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	path, err := checkPath("staging_target_path", request.GetStagingTargetPath())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.unmount(path); err != nil {
		return nil, failure(err)
	}
	node, err := s.store.Node(s.id)
	if err != nil {
		return nil, failure(err)
	}
	if was, ok := node.Stages[path]; ok {
		err := s.store.UpdateNode(ctx, s.id, func(node *state.Node) { delete(node.Stages, path) },
			state.Entry{Op: state.OpUnstage, Volume: was.Volume, Generation: was.Generation, Path: path})
		if err != nil {
			return nil, failure(err)
		}
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// unmount takes everything off a staging path. With mu held.
func (s *Server) unmount(path string) error {
	if err := mounts.Detach(path); err != nil {
		return err
	}
	if was, ok := s.staged[path]; ok {
		delete(s.staged, path)
		s.leave(was.mount)
	}
	return nil
}

// leave remembers a filesystem that may still be in use, and forgets those that
// have ended.
func (s *Server) leave(mount *fusefs.Mount) {
	kept := s.leaving[:0]
	for _, other := range s.leaving {
		if other.Alive() {
			kept = append(kept, other)
		}
	}
	s.leaving = kept
	if mount != nil {
		s.leaving = append(s.leaving, mount)
	}
}
