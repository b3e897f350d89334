// Package node is the Node service of the simulated driver.
package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fusefs"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/health"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// Config of a Server.
type Config struct {
	Store  *state.Store
	NodeID string
	Health health.Dialect
	// Topology is where the node is; nil: it does not say.
	Topology state.Segments
	// Mount mounts a filesystem; nil is fusefs.New.
	Mount func(fusefs.Config) (*fusefs.Mount, error)
}

// Server answers for one node.
type Server struct {
	csi.UnimplementedNodeServer
	store  *state.Store
	id     string
	health health.Dialect
	at     state.Segments
	mount  func(fusefs.Config) (*fusefs.Mount, error)

	// mu is held while mounts change; the health of a volume is told without.
	mu     sync.Mutex
	staged map[string]staged // by staging path
	// leaving are filesystems that were unmounted while files on them were open.
	leaving []*fusefs.Mount

	fencing sync.Once     // how often the fallback is told
	unsafe  chan struct{} // closed when a volume was mounted without a fence
}

// staged is what this process has mounted at a staging path.
type staged struct {
	volume     string
	generation uint64
	identity   string        // of the mount, as the mount table shows it
	mount      *fusefs.Mount // nil: a bind mount, without a fence
}

func (s staged) alive() bool { return s.mount == nil || s.mount.Alive() }

// New makes it. Start comes next.
func New(cfg Config) (*Server, error) {
	if cfg.Store == nil {
		return nil, errors.New("the node service needs a store")
	}
	if !state.ValidNodeID(cfg.NodeID) {
		return nil, fmt.Errorf("node ID %q is no name of a node", cfg.NodeID)
	}
	if _, err := health.Parse(string(cfg.Health)); err != nil {
		return nil, err
	}
	s := &Server{store: cfg.Store, id: cfg.NodeID, health: cfg.Health, at: cfg.Topology, mount: cfg.Mount,
		staged: map[string]staged{}, unsafe: make(chan struct{})}
	if s.mount == nil {
		s.mount = fusefs.New
	}
	return s, nil
}

// Fencing says whether everything that was mounted so far can be fenced.
func (s *Server) Fencing() bool {
	select {
	case <-s.unsafe:
		return false
	default:
		return true
	}
}

// NodeGetInfo tells who the node is, and where.
func (s *Server) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	response := &csi.NodeGetInfoResponse{NodeId: s.id}
	if len(s.at) > 0 {
		response.AccessibleTopology = &csi.Topology{Segments: s.at}
	}
	return response, nil
}

// NodeGetCapabilities tells what there is.
func (s *Server) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	}
	switch s.health {
	case health.Legacy:
		types = append(types, health.NodeVolumeCondition)
	case health.V113:
		types = append(types,
			csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
			csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH)
	}
	response := &csi.NodeGetCapabilitiesResponse{}
	for _, kind := range types {
		response.Capabilities = append(response.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: kind}},
		})
	}
	return response, nil
}

// publication is what lets this node use the volume.
func (s *Server) publication(id string) (state.Publication, error) {
	volume, err := s.store.Volume(id)
	if err != nil {
		return state.Publication{}, failure(err)
	}
	publication, ok := volume.Publications[s.id]
	if !ok {
		return state.Publication{}, status.Errorf(codes.FailedPrecondition,
			"volume %s is not published to node %s", id, s.id)
	}
	return publication, nil
}

// failure gives an error of the store or of the machine its code.
func failure(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, state.ErrNotFound):
		code = codes.NotFound
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	}
	return status.Error(code, err.Error())
}

// checkPath wants an absolute path and gives it the way the mount table shows
// it. The last element is not followed: it may be a dead mount.
func checkPath(field, path string) (string, error) {
	if path == "" {
		return "", status.Errorf(codes.InvalidArgument, "%s is missing", field)
	}
	if !filepath.IsAbs(path) {
		return "", status.Errorf(codes.InvalidArgument, "%s %q is not absolute", field, path)
	}
	path = filepath.Clean(path)
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		// It does not exist yet, so nothing is mounted below it.
		return path, nil //nolint:nilerr // see above
	}
	return filepath.Join(parent, filepath.Base(path)), nil
}
