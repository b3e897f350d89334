package health

import (
	"slices"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// stateOf says what one adverse condition means for the volume. A category that
// this version does not know is not healthy, and no reason to act; the same
// holds for the legacy "abnormal", which may mean anything.
func stateOf(kind volume.ConditionKind) volume.State {
	switch kind {
	case volume.DataLoss:
		return volume.StateDataLoss
	case volume.Inaccessible:
		return volume.StateInaccessible
	default:
		return volume.StateDegraded
	}
}

// classify finds the worst of the conditions; no condition is an explicit
// healthy answer.
func classify(conditions []volume.Condition) (volume.State, volume.Condition) {
	state, worst := volume.StateHealthy, volume.Condition{}
	for _, c := range conditions {
		if s := stateOf(c.Kind); s.Severity() > state.Severity() {
			state, worst = s, c
		}
	}
	return state, worst
}

// mergeReadings makes one reading of all that speak of the same key, so that a
// driver which lists a volume twice in one answer is not counted twice. The
// conditions are united; the order of first sight is kept.
func mergeReadings(readings []volume.Reading) []volume.Reading {
	at := make(map[volume.Key]int, len(readings))
	merged := make([]volume.Reading, 0, len(readings))
	for _, r := range readings {
		i, seen := at[r.Key]
		if !seen {
			at[r.Key] = len(merged)
			merged = append(merged, r)
			continue
		}
		conditions := slices.Clone(merged[i].Conditions)
		for _, c := range r.Conditions {
			if !slices.Contains(conditions, c) {
				conditions = append(conditions, c)
			}
		}
		merged[i].Conditions = conditions
	}
	return merged
}

// reasonLegacy is the reason of a condition that a driver gave none for.
const reasonLegacy = "VolumeConditionAbnormal"

// expandLegacy adds to a sweep, for each volume that speaks the legacy dialect,
// a reading from every node where the volume is attached: inaccessible where it
// says abnormal, healthy where it says healthy. nodesOf lists those nodes.
func expandLegacy(readings []volume.Reading, nodesOf func(volume.Handle) []string) []volume.Reading {
	expanded := slices.Clone(readings)
	for _, r := range readings {
		if !r.Key.Everywhere() || !r.Healthy() && !hasKind(r.Conditions, volume.Abnormal) {
			continue
		}
		var conditions []volume.Condition
		for _, c := range r.Conditions {
			if c.Kind == volume.Abnormal {
				conditions = append(conditions, volume.Condition{
					Kind:    volume.Inaccessible,
					Reason:  c.Reason,
					Message: c.Message,
				})
			}
		}
		for _, node := range nodesOf(r.Key.Handle) {
			fromNode := r
			fromNode.Key.Node = node
			fromNode.Conditions = conditions
			expanded = append(expanded, fromNode)
		}
	}
	return expanded
}

func hasKind(conditions []volume.Condition, kind volume.ConditionKind) bool {
	return slices.ContainsFunc(conditions, func(c volume.Condition) bool { return c.Kind == kind })
}
