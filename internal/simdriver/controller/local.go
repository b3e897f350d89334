package controller

import (
	"errors"
	"maps"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// here narrows where a volume may be to where a node's own process can make it.
func (s *Server) here(asked state.Requirement) (state.Requirement, error) {
	if len(s.at) == 0 {
		return asked, nil
	}
	for _, term := range asked.Requisite {
		if s.at.Within(term) {
			return state.Requirement{Requisite: []state.Segments{s.at}, Preferred: []state.Segments{s.at}}, nil
		}
	}
	if len(asked.Requisite) == 0 {
		return state.Requirement{Requisite: []state.Segments{s.at}, Preferred: []state.Segments{s.at}}, nil
	}
	return asked, status.Errorf(codes.ResourceExhausted, "volumes are made at %s alone", s.at)
}

// isElsewhere says whether a volume is another node's: a driver of local disks
// does not know of it, and answers as for one that does not exist.
func (s *Server) isElsewhere(id string) (bool, error) {
	if len(s.at) == 0 {
		return false, nil
	}
	volume, err := s.store.Volume(id)
	if errors.Is(err, state.ErrNotFound) {
		return false, nil
	}
	return err == nil && !maps.Equal(volume.Topology, s.at), err
}
