package health

import (
	"container/heap"
	"maps"
	"slices"
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// timers are the times at which a key is to be looked at. An entry may be
// outdated: whoever pops it looks at what is due now.
type timers []timer

type timer struct {
	at  time.Time
	key volume.Key
}

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }

// Push implements heap.Interface.
func (t *timers) Push(x any) { *t = append(*t, x.(timer)) }

// Pop implements heap.Interface.
func (t *timers) Pop() any {
	last := len(*t) - 1
	x := (*t)[last]
	*t = (*t)[:last]
	return x
}

func (t *timers) set(at time.Time, key volume.Key) { heap.Push(t, timer{at: at, key: key}) }

// pop takes the keys whose time has come, each once.
func (t *timers) pop(now time.Time) []volume.Key {
	keys := map[volume.Key]struct{}{}
	for len(*t) > 0 && !(*t)[0].at.After(now) {
		keys[heap.Pop(t).(timer).key] = struct{}{}
	}
	return slices.SortedFunc(maps.Keys(keys), compareKeys)
}

// next is the earliest time, false where there is none.
func (t timers) next() (time.Time, bool) {
	if len(t) == 0 {
		return time.Time{}, false
	}
	return t[0].at, true
}
