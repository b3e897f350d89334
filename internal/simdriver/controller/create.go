package controller

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/capability"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/misbehave"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// CreateVolume makes a directory, or finds the one that this name made before.
func (s *Server) CreateVolume(ctx context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if request.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "name is missing")
	}
	if err := capability.CheckAll(request.GetVolumeCapabilities()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := checkMutable(request.GetMutableParameters()); err != nil {
		return nil, err
	}
	size := state.Range{
		Required: request.GetCapacityRange().GetRequiredBytes(),
		Limit:    request.GetCapacityRange().GetLimitBytes(),
	}
	if size.Required < 0 || size.Limit < 0 || (size.Limit > 0 && size.Limit < size.Required) {
		return nil, status.Errorf(codes.OutOfRange, "no capacity is within %d and %d", size.Required, size.Limit)
	}
	requirement, err := s.requirement(request.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	if requirement, err = s.here(requirement); err != nil {
		return nil, err
	}
	source, err := readSource(request.GetVolumeContentSource())
	if err != nil {
		return nil, err
	}
	spec := state.Spec{
		Name: request.GetName(), Size: size, Requirement: requirement, Source: source,
		Parameters: request.GetParameters(), Mutable: request.GetMutableParameters(),
	}
	wrong := s.misbehave.Create(spec.Name)
	_, notBefore := s.store.Volume(state.VolumeID(spec.Name))
	volume, err := s.store.Create(ctx, spec)
	if err != nil {
		return nil, failure(err)
	}
	if wrong == misbehave.OtherID && notBefore == nil {
		spec.Name = s.misbehave.Other(spec.Name)
		if volume, err = s.store.Create(ctx, spec); err != nil {
			return nil, failure(fmt.Errorf("making another volume: %w", err))
		}
	}
	return reply(spec, volume, wrong), nil
}

// requirement reads where the volume is to be. Without the capability the caller
// must not ask.
func (s *Server) requirement(asked *csi.TopologyRequirement) (state.Requirement, error) {
	if asked == nil {
		return state.Requirement{}, nil
	}
	if !s.topology {
		return state.Requirement{}, status.Error(codes.InvalidArgument,
			"accessibility_requirements are given, and the driver runs without --topology")
	}
	read := func(terms []*csi.Topology) (all []state.Segments, err error) {
		for i, term := range terms {
			if len(term.GetSegments()) == 0 {
				return nil, status.Errorf(codes.InvalidArgument, "term %d of accessibility_requirements has no segments", i)
			}
			all = append(all, term.GetSegments())
		}
		return all, nil
	}
	requisite, err := read(asked.GetRequisite())
	if err != nil {
		return state.Requirement{}, err
	}
	preferred, err := read(asked.GetPreferred())
	return state.Requirement{Requisite: requisite, Preferred: preferred}, err
}

func readSource(asked *csi.VolumeContentSource) (state.Source, error) {
	source := state.Source{Volume: asked.GetVolume().GetVolumeId(), Snapshot: asked.GetSnapshot().GetSnapshotId()}
	if asked != nil && source == (state.Source{}) {
		return source, status.Error(codes.InvalidArgument, "volume_content_source names neither a volume nor a snapshot")
	}
	return source, nil
}

// reply tells of the volume, wrongly where a test wants that.
func reply(spec state.Spec, volume state.Volume, wrong misbehave.Create) *csi.CreateVolumeResponse {
	response := &csi.CreateVolumeResponse{Volume: describe(volume)}
	switch wrong {
	case misbehave.Smaller:
		response.Volume.CapacityBytes = max(0, spec.Size.Required-1)
	case misbehave.NoVolume:
		response.Volume = nil
	case misbehave.NoSource:
		response.Volume.ContentSource = nil
	case misbehave.EmptyTopology:
		response.Volume.AccessibleTopology = []*csi.Topology{{}}
	}
	return response
}

// mutableKey is how mutable parameters are called. A driver has to refuse those
// that it does not know, and this one knows all that are spelled so.
var mutableKey = regexp.MustCompile(`^[a-z][a-z0-9./-]*$`)

func checkMutable(parameters map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if !mutableKey.MatchString(key) {
			return status.Errorf(codes.InvalidArgument, "mutable parameter %q is not known: keys are in lower case", key)
		}
	}
	return nil
}

// ControllerModifyVolume changes the mutable parameters that are named.
func (s *Server) ControllerModifyVolume(ctx context.Context, request *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_id is missing")
	}
	if err := checkMutable(request.GetMutableParameters()); err != nil {
		return nil, err
	}
	if err := s.store.ModifyVolume(ctx, request.GetVolumeId(), request.GetMutableParameters()); err != nil {
		return nil, failure(err)
	}
	return &csi.ControllerModifyVolumeResponse{}, nil
}
