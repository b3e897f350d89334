package virtualnode

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/process"
)

// restartDelay is how long after its end a container is started again, by the
// number of crashes in a row: the first restart is immediate, then base doubles
// up to limit.
func restartDelay(crashes int, base, limit time.Duration) time.Duration {
	if crashes <= 1 {
		return 0
	}
	delay := base
	for i := 2; i < crashes && delay < limit; i++ {
		delay *= 2
	}
	return min(delay, limit)
}

// restarts counts crashes in a row. A run of more than twice the largest delay
// starts the count anew, as in the kubelet.
type restarts struct {
	clock       clock.PassiveClock
	base, limit time.Duration

	mu     sync.Mutex
	counts map[process.ID]crashes
}

type crashes struct {
	attempt int // the last one counted
	count   int
}

func newRestarts(c clock.PassiveClock, base, limit time.Duration) *restarts {
	return &restarts{clock: c, base: base, limit: limit, counts: map[process.ID]crashes{}}
}

// remaining returns how much longer a container that ended has to wait.
func (r *restarts) remaining(id process.ID, attempt int, started, finished time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := r.counts[id]
	if !ok || c.attempt != attempt {
		if finished.Sub(started) > 2*r.limit {
			c.count = 0
		}
		c = crashes{attempt: attempt, count: c.count + 1}
		r.counts[id] = c
	}
	return max(0, restartDelay(c.count, r.base, r.limit)-r.clock.Since(finished))
}

// forget drops the count of a container.
func (r *restarts) forget(id process.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.counts, id)
}
