package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/gate"
)

// Gate opens the gate between a volume and a node.
func (s *Store) Gate(id, node string) (*gate.Gate, error) {
	if !validID(id) || !ValidNodeID(node) {
		return nil, fmt.Errorf("volume %q on node %q: %w", id, node, ErrNotFound)
	}
	dir := filepath.Join(s.dir, "gates", id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making a gate: %w", err)
	}
	return gate.Open(filepath.Join(dir, node))
}

// FailPath makes every operation of the node on the volume fail, also those
// through files that are open. When it returns nil, none is in flight.
func (s *Store) FailPath(ctx context.Context, id, node string) error {
	return s.withGate(id, node, OpPathFail, func(g *gate.Gate) error { return g.Break(ctx) })
}

// HealPath undoes FailPath. Files that are open work again.
func (s *Store) HealPath(_ context.Context, id, node string) error {
	return s.withGate(id, node, OpPathHeal, func(g *gate.Gate) error { g.Mend(); return nil })
}

// PathFailed says whether the path between the volume and the node fails.
func (s *Store) PathFailed(id, node string) (bool, error) {
	opened, err := s.Gate(id, node)
	if err != nil {
		return false, err
	}
	return opened.Broken(), opened.Close()
}

func (s *Store) withGate(id, node, op string, do func(*gate.Gate) error) error {
	if _, err := s.Volume(id); err != nil {
		return err
	}
	if _, err := s.Node(node); err != nil {
		return err
	}
	opened, err := s.Gate(id, node)
	if err != nil {
		return err
	}
	if err := errors.Join(do(opened), opened.Close()); err != nil {
		return fmt.Errorf("changing the path of volume %s to %s: %w", id, node, err)
	}
	return s.record(Entry{Op: op, Volume: id, Node: node})
}
