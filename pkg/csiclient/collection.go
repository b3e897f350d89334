package csiclient

import (
	"sync"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Reasons for which an entry is skipped.
const (
	skipNoVolume    = "no_volume"
	skipNoStatus    = "no_status"
	skipNoCondition = "no_condition"
	skipEmptyID     = "empty_id"
	skipInvalidID   = "invalid_id"
	skipOtherVolume = "other_volume"
)

// collection gathers the readings of one sweep.
type collection struct {
	counter *metrics.CounterVec
	// wanted is nil when every volume is.
	wanted map[volume.Handle]struct{}

	mu       sync.Mutex
	readings []volume.Reading
	index    map[volume.Handle]int
	skipped  int
}

func newCollection(handles []volume.Handle, counter *metrics.CounterVec) *collection {
	b := &collection{counter: counter, index: map[volume.Handle]int{}}
	if len(handles) > 0 {
		b.wanted = make(map[volume.Handle]struct{}, len(handles))
		for _, h := range handles {
			b.wanted[h] = struct{}{}
		}
	}
	return b
}

// add records what was read of a volume. Two entries for the same one are
// merged: as two readings they would confirm each other.
func (b *collection) add(id string, started time.Time, conditions []volume.Condition) {
	handle := volume.Handle(id)
	if _, ok := b.wanted[handle]; !ok && b.wanted != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if i, ok := b.index[handle]; ok {
		b.readings[i].Conditions = append(b.readings[i].Conditions, conditions...)
		return
	}
	b.index[handle] = len(b.readings)
	b.readings = append(b.readings, volume.Reading{
		Key:        volume.Key{Handle: handle},
		Source:     volume.SourceController,
		Conditions: conditions,
		Started:    started,
	})
}

// addListed is add for an entry of a list, whose id has to be looked at first.
func (b *collection) addListed(id string, started time.Time, conditions []volume.Condition) {
	switch {
	case id == "":
		b.skip(skipEmptyID)
	case garbled(id):
		b.skip(skipInvalidID)
	default:
		b.add(id, started, conditions)
	}
}

// skip counts an entry that cannot be used.
func (b *collection) skip(reason string) {
	b.counter.WithLabelValues(reason).Inc()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.skipped++
}

// reset forgets all of a list that starts again.
func (b *collection) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readings, b.skipped = nil, 0
	clear(b.index)
}

func (b *collection) result() volume.Sweep {
	b.mu.Lock()
	defer b.mu.Unlock()
	byHandle(b.readings)
	return volume.Sweep{Readings: b.readings, Skipped: b.skipped}
}
