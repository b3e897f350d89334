package attach

import (
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// fencedMemory is how long a fenced key is remembered that no VolumeAttachment
// speaks of any more. Until then a publish reads the Node's hold live; after it
// the informer tells of the hold, whatever became of its watch: none lasts as long.
const fencedMemory = 10 * time.Minute

// fade forgets a fenced key in time, and returns how long that is still to take.
func (l *ledger) fade(k volume.Key, e *keyEntry, now time.Time) time.Duration {
	if e.state() != Fenced || len(e.refs) > 0 {
		return 0
	}
	if e.leftAt.IsZero() {
		e.leftAt = now
	}
	left := e.leftAt.Add(fencedMemory).Sub(now)
	if left <= 0 {
		e.become(Absent)
		l.prune(k)
	}
	return left
}

// recordPatience is how long a fence record may keep a VolumeAttachment back
// before that is shown. A walk at work deletes it in seconds.
const recordPatience = time.Minute

// patience is what is left of recordPatience.
func (r *ref) patience(now time.Time) time.Duration {
	if r.keptSince.IsZero() {
		r.keptSince = now
	}
	return r.keptSince.Add(recordPatience).Sub(now)
}

// noHold notes that a live read that began then showed the node without a hold.
func (l *ledger) noHold(node string, began time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !began.Before(l.holdOffUntil) {
		l.unheld[node] = struct{}{}
	}
}

// holdKnown reports whether the informer does for a first publish onto the node.
func (l *ledger) holdKnown(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.unheld[node]
	return ok
}

// nodeGone forgets what was read of a node.
func (l *ledger) nodeGone(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unheld, node)
}
