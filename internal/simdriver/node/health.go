package node

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// NodeGetVolumeHealth tells what this node sees wrong with a volume.
func (s *Server) NodeGetVolumeHealth(_ context.Context, request *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if s.health != health.V113 {
		return nil, status.Error(codes.Unimplemented, "the driver runs without the health of CSI 1.13")
	}
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	volume, err := s.store.Volume(request.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	conditions, _, err := s.conditions(volume)
	if err != nil {
		return nil, failure(err)
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health.Volume(volume.ID, conditions)}, nil
}

// NodeGetStorageHealth tells what was set for this node.
func (s *Server) NodeGetStorageHealth(context.Context, *csi.NodeGetStorageHealthRequest) (*csi.NodeGetStorageHealthResponse, error) {
	if s.health != health.V113 {
		return nil, status.Error(codes.Unimplemented, "the driver runs without the health of CSI 1.13")
	}
	node, err := s.store.Node(s.id)
	if err != nil {
		return nil, failure(err)
	}
	return health.Storage(node.Storage), nil
}

// NodeGetVolumeStats tells the usage of the directory's filesystem, and in the
// legacy dialect the condition of the volume.
func (s *Server) NodeGetVolumeStats(_ context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if request.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	volume, err := s.store.Volume(request.GetVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	if err := s.mountedAt(volume.ID, request.GetVolumePath()); err != nil {
		return nil, err
	}
	conditions, reachable, err := s.conditions(volume)
	if err != nil {
		return nil, failure(err)
	}
	response := &csi.NodeGetVolumeStatsResponse{}
	if s.health == health.Legacy {
		health.SetCondition(response, conditions)
	}
	if !reachable {
		if s.health == health.Legacy {
			return response, nil // the condition says it all
		}
		return nil, status.Errorf(codes.Internal, "volume %s cannot be reached from node %s", volume.ID, s.id)
	}
	response.Usage, err = usage(s.store.DataDir(volume.ID))
	if err != nil {
		return nil, failure(err)
	}
	return response, nil
}

// mountedAt says NOT_FOUND unless the volume is mounted at the path.
func (s *Server) mountedAt(id, path string) error {
	node, err := s.store.Node(s.id)
	if err != nil {
		return failure(err)
	}
	resolved, err := checkPath("volume_path", path)
	if err == nil && (node.Targets[resolved].Volume == id || node.Stages[resolved].Volume == id) {
		_, mounted, err := mounts.At(resolved)
		if err != nil {
			return failure(err)
		}
		if mounted {
			return nil
		}
	}
	return status.Errorf(codes.NotFound, "volume %s is not mounted at %q", id, path)
}

// conditions are what this node sees wrong with a volume, and whether operations
// on it pass.
func (s *Server) conditions(volume state.Volume) (conditions []state.Condition, reachable bool, err error) {
	conditions = append(conditions, volume.Conditions[s.id]...)
	reachable = true
	failed, err := s.store.PathFailed(volume.ID, s.id)
	if err != nil {
		return nil, false, err
	}
	if failed {
		conditions, reachable = append(conditions, health.PathLost()), false
	}
	node, err := s.store.Node(s.id)
	if err != nil {
		return nil, false, err
	}
	for _, stage := range node.Stages {
		if stage.Volume == volume.ID && stage.Generation != volume.Publications[s.id].Generation {
			return append(conditions, health.NotPublished()), false, nil
		}
	}
	return conditions, reachable, nil
}

func usage(dir string) ([]*csi.VolumeUsage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil, fmt.Errorf("asking for the usage of the volume: %w", err)
	}
	bytes := func(blocks uint64) int64 { return int64(blocks) * st.Bsize }
	return []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: bytes(st.Blocks), Available: bytes(st.Bavail), Used: bytes(st.Blocks - st.Bfree)},
		{Unit: csi.VolumeUsage_INODES, Total: int64(st.Files), Available: int64(st.Ffree), Used: int64(st.Files - st.Ffree)},
	}, nil
}
