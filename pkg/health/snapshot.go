package health

import (
	"maps"
	"slices"
	"strings"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// transitions drains what changed since the last call, in the order of the keys.
func (t *tracker) transitions() []transition {
	var changes []transition
	for _, key := range slices.SortedFunc(maps.Keys(t.dirty), compareKeys) {
		from, known := t.told[key]
		if !known {
			from = Status{Verdict: volume.Verdict{Key: key, State: volume.StateHealthy}}
		}
		to := Status{Verdict: volume.Verdict{Key: key, State: volume.StateHealthy}}
		if e := t.entries[key]; e != nil {
			to = e.status(key)
			t.dropIdle(key, e)
		}
		if !to.Abnormal() {
			delete(t.told, key)
		} else {
			t.told[key] = to
		}
		if (known || to.Abnormal()) && !sameStatus(from, to) {
			changes = append(changes, transition{from: from, to: to})
		}
	}
	clear(t.dirty)
	return changes
}

func (t *tracker) dropIdle(key volume.Key, e *entry) {
	if !e.idle() {
		return
	}
	delete(t.entries, key)
	delete(t.byNode[key.Node], key)
	if len(t.byNode[key.Node]) == 0 {
		delete(t.byNode, key.Node)
	}
}

// claimChange is what the controller plugin says of a volume now.
type claimChange struct {
	handle     volume.Handle
	conditions []volume.Condition
}

// claimChanges drains what the controller plugin says otherwise than before.
func (t *tracker) claimChanges() []claimChange {
	var changes []claimChange
	for _, handle := range slices.Sorted(maps.Keys(t.claims)) {
		change := claimChange{handle: handle}
		if e := t.entries[volume.Key{Handle: handle}]; e != nil {
			if w := e.words[origin{source: volume.SourceController}]; w != nil {
				change.conditions = w.conditions
			}
		}
		changes = append(changes, change)
	}
	clear(t.claims)
	return changes
}

func sameStatus(a, b Status) bool {
	return a.Verdict == b.Verdict && a.Waiting == b.Waiting && slices.Equal(a.Conditions, b.Conditions)
}

func compareKeys(a, b volume.Key) int {
	if c := strings.Compare(string(a.Handle), string(b.Handle)); c != 0 {
		return c
	}
	return strings.Compare(a.Node, b.Node)
}

// snapshot is what the outside sees; it is never changed once made.
type snapshot struct {
	// statuses are all adverse keys, in the order of compareKeys.
	statuses []Status
	// verdicts are those of statuses that count.
	verdicts []volume.Verdict
	abnormal map[volume.Key]struct{}
}

func (t *tracker) snapshot() *snapshot {
	s := &snapshot{
		statuses: make([]Status, 0, len(t.told)),
		verdicts: make([]volume.Verdict, 0, len(t.told)),
		abnormal: make(map[volume.Key]struct{}, len(t.told)),
	}
	for _, key := range slices.SortedFunc(maps.Keys(t.told), compareKeys) {
		status := t.told[key]
		s.statuses = append(s.statuses, status)
		s.abnormal[key] = struct{}{}
		if !t.outranked(status) {
			s.verdicts = append(s.verdicts, status.Verdict)
		}
	}
	return s
}

// outranked reports whether a node's verdict is no verdict of its own: the
// volume is known to be lost, or to be inaccessible from everywhere, and moving
// it off one node cannot help. What is kept from memory stands, since it says
// that the node is not to be trusted, and not that anything should move.
func (t *tracker) outranked(s Status) bool {
	if s.Key.Everywhere() || s.Suspect() {
		return false
	}
	everywhere := t.told[volume.Key{Handle: s.Key.Handle}]
	return everywhere.Confirmed && everywhere.State.Severity() >= volume.StateInaccessible.Severity()
}

// worstByState counts the volumes by the worst state of any of their keys.
func (s *snapshot) worstByState() map[volume.State]int {
	counts := map[volume.State]int{}
	for i := 0; i < len(s.statuses); {
		handle, worst := s.statuses[i].Key.Handle, volume.StateHealthy
		for ; i < len(s.statuses) && s.statuses[i].Key.Handle == handle; i++ {
			if state := s.statuses[i].State; state.Severity() > worst.Severity() {
				worst = state
			}
		}
		counts[worst]++
	}
	return counts
}
