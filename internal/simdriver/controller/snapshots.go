package controller

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// CreateSnapshot copies a volume's directory, or finds the copy that this name
// made before.
func (s *Server) CreateSnapshot(ctx context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	switch {
	case request.GetName() == "":
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	case request.GetSourceVolumeId() == "":
		return nil, status.Error(codes.InvalidArgument, "source_volume_id is missing")
	}
	snapshot, err := s.store.CreateSnapshot(ctx, request.GetName(), request.GetSourceVolumeId())
	if err != nil {
		return nil, failure(err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: describeSnapshot(snapshot)}, nil
}

// DeleteSnapshot removes the copy. Volumes made from it stay.
func (s *Server) DeleteSnapshot(ctx context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if request.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is missing")
	}
	if err := s.store.DeleteSnapshot(ctx, request.GetSnapshotId()); err != nil {
		return nil, failure(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// ListSnapshots pages through all snapshots, or those that the filters leave.
func (s *Server) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	snapshots, err := s.store.Snapshots()
	if err != nil {
		return nil, failure(err)
	}
	snapshots = slices.DeleteFunc(snapshots, func(snapshot state.Snapshot) bool {
		return (request.GetSnapshotId() != "" && snapshot.ID != request.GetSnapshotId()) ||
			(request.GetSourceVolumeId() != "" && snapshot.Volume != request.GetSourceVolumeId())
	})
	part, next, err := page(snapshots, request.GetMaxEntries(), request.GetStartingToken())
	if err != nil {
		return nil, err
	}
	response := &csi.ListSnapshotsResponse{NextToken: next}
	for _, snapshot := range part {
		response.Entries = append(response.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: describeSnapshot(snapshot)})
	}
	return response, nil
}

// GetSnapshot tells of one snapshot.
func (s *Server) GetSnapshot(_ context.Context, request *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if request.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "snapshot_id is missing")
	}
	snapshot, err := s.store.Snapshot(request.GetSnapshotId())
	if err != nil {
		return nil, failure(err)
	}
	return &csi.GetSnapshotResponse{Snapshot: describeSnapshot(snapshot)}, nil
}

func describeSnapshot(snapshot state.Snapshot) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId: snapshot.ID, SourceVolumeId: snapshot.Volume, SizeBytes: snapshot.Size,
		CreationTime: timestamppb.New(snapshot.Taken), ReadyToUse: true,
	}
}
