package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Node is a registered node and what its process has mounted, so that the next
// process can take it up.
type Node struct {
	ID string `json:"id"`
	// Topology is where the node is; nil if it never said.
	Topology Segments `json:"topology,omitempty"`
	// Stages by staging path, Targets by target path.
	Stages  map[string]Stage  `json:"stages,omitempty"`
	Targets map[string]Target `json:"targets,omitempty"`
	// Storage is what NodeGetStorageHealth says.
	Storage []Condition `json:"storage,omitempty"`
}

// Stage is a volume that was staged.
type Stage struct {
	Volume     string `json:"volume"`
	Generation uint64 `json:"generation"`
}

// Target is a volume that was published to a pod.
type Target struct {
	Volume   string `json:"volume"`
	Staging  string `json:"staging"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

func (s *Store) nodePath(id string) string { return filepath.Join(s.dir, "nodes", id+".json") }

// nodeLock is no volume's: volume IDs start with their prefix.
func nodeLock(id string) string { return "node-" + id }

// Node reads one node; ErrNotFound if it never registered.
func (s *Store) Node(id string) (Node, error) {
	if !ValidNodeID(id) {
		return Node{}, fmt.Errorf("node %q: %w", id, ErrNotFound)
	}
	var node Node
	if err := readJSON(s.nodePath(id), &node); err != nil {
		return Node{}, fmt.Errorf("node %q: %w", id, err)
	}
	return node, nil
}

// Nodes are all that ever registered, ordered by ID.
func (s *Store) Nodes() ([]Node, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "nodes"))
	if err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	nodes := make([]Node, 0, len(entries))
	for _, entry := range entries {
		id, found := strings.CutSuffix(entry.Name(), ".json")
		if !found || !ValidNodeID(id) {
			continue // a record that is being written
		}
		node, err := s.Node(id)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// Register makes the node known, and keeps what is known of it.
func (s *Store) Register(ctx context.Context, id string) error {
	if !ValidNodeID(id) {
		return fmt.Errorf("node ID %q is no name of a node", id)
	}
	unlock, err := s.lock(ctx, nodeLock(id))
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := s.Node(id); !errors.Is(err, ErrNotFound) {
		return err
	}
	return writeJSON(s.nodePath(id), Node{ID: id})
}

// UpdateNode changes the record of a node, and tells the ledger why.
func (s *Store) UpdateNode(ctx context.Context, id string, change func(*Node), entries ...Entry) error {
	unlock, err := s.lock(ctx, nodeLock(id))
	if err != nil {
		return err
	}
	defer unlock()
	node, err := s.Node(id)
	if err != nil {
		return err
	}
	if node.Stages == nil {
		node.Stages = map[string]Stage{}
	}
	if node.Targets == nil {
		node.Targets = map[string]Target{}
	}
	change(&node)
	if err := writeJSON(s.nodePath(id), node); err != nil {
		return fmt.Errorf("saving node %s: %w", id, err)
	}
	for _, entry := range entries {
		entry.Node = id
		if err := s.record(entry); err != nil {
			return err
		}
	}
	return nil
}
