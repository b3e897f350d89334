package state

import (
	"context"
	"fmt"
	"regexp"
	"slices"
)

// The kinds of a Condition.
const (
	Degraded     = "degraded"
	Inaccessible = "inaccessible"
	DataLoss     = "data-loss"
	// Unreachable is for the storage of a node, beside Degraded.
	Unreachable = "unreachable"
	// Abnormal is what the legacy dialect knows. CSI 1.13 has no such word and
	// says Degraded.
	Abnormal = "abnormal"
)

// Condition is something wrong with a volume, or with the storage of a node.
type Condition struct {
	Kind string `json:"kind"`
	// Reason is CamelCase; empty stands for one that fits the kind.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]{0,127}$`)

func defaultReason(kind string) string {
	switch kind {
	case Degraded:
		return "Degraded"
	case Inaccessible:
		return "Inaccessible"
	case DataLoss:
		return "DataLoss"
	case Unreachable:
		return "Unreachable"
	default:
		return "Abnormal"
	}
}

// validate fills in reasons, and refuses what CSI does not allow to be told.
func validate(conditions []Condition, kinds ...string) ([]Condition, error) {
	valid := make([]Condition, 0, len(conditions))
	for _, c := range conditions {
		if !slices.Contains(kinds, c.Kind) {
			return nil, fmt.Errorf("%w health %q, it is one of %v", ErrInvalid, c.Kind, kinds)
		}
		if c.Reason == "" {
			c.Reason = defaultReason(c.Kind)
		}
		if !camelCase.MatchString(c.Reason) {
			return nil, fmt.Errorf("%w reason %q, it is CamelCase", ErrInvalid, c.Reason)
		}
		if slices.ContainsFunc(valid, func(v Condition) bool { return v.Kind == c.Kind && v.Reason == c.Reason }) {
			return nil, fmt.Errorf("%w health: %s with reason %s is given twice", ErrInvalid, c.Kind, c.Reason)
		}
		valid = append(valid, c)
	}
	return valid, nil
}

// SetHealth says what is wrong with a volume, from now on: as the controller
// sees it (node ""), or as that node sees it. No conditions: nothing.
func (s *Store) SetHealth(ctx context.Context, id, node string, conditions []Condition) error {
	valid, err := validate(conditions, Degraded, Inaccessible, DataLoss, Abnormal)
	if err != nil {
		return err
	}
	if node != "" {
		if _, err := s.Node(node); err != nil {
			return err
		}
	}
	return s.update(ctx, id, func(volume *Volume) error {
		if volume.Conditions == nil {
			volume.Conditions = map[string][]Condition{}
		}
		volume.Conditions[node] = valid
		if len(valid) == 0 {
			delete(volume.Conditions, node)
		}
		return nil
	})
}

// SetStorageHealth says what is wrong with the storage of a node.
func (s *Store) SetStorageHealth(ctx context.Context, node string, conditions []Condition) error {
	valid, err := validate(conditions, Degraded, Unreachable)
	if err != nil {
		return err
	}
	return s.UpdateNode(ctx, node, func(n *Node) { n.Storage = valid })
}
