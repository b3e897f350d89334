package provisioner

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// jitter spreads retries, by this part of their pause.
const jitter = 0.2

// queue is a work queue with a backoff per key that events do not shorten unless
// they bring something new.
type queue struct {
	workqueue.TypedDelayingInterface[string]
	clock clock.WithTicker
	// pause is how long to wait after so many failures.
	pause func(failures int) time.Duration

	mu       sync.Mutex
	failures map[string]int
	due      map[string]time.Time
	// renewed are keys that have changed and were not taken since.
	renewed map[string]bool
}

// newQueue makes a queue that has a goroutine until ShutDown.
func newQueue(name string, c clock.WithTicker, pause func(int) time.Duration) *queue {
	return &queue{
		TypedDelayingInterface: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Name: name, Clock: c}),
		clock:                  c, pause: pause, failures: map[string]int{}, due: map[string]time.Time{}, renewed: map[string]bool{},
	}
}

// add queues a key, unless it is in backoff: its time will come.
func (q *queue) add(key string) {
	if q.remaining(key) <= 0 {
		q.Add(key)
	}
}

// renew queues a key that has changed: its backoff is over.
func (q *queue) renew(key string) {
	q.mu.Lock()
	delete(q.failures, key)
	delete(q.due, key)
	q.renewed[key] = true
	q.mu.Unlock()
	q.Add(key)
}

// take reports whether a key that was handed out may be worked on. One that is in
// backoff may not: timers cannot be taken back, and that of an earlier backoff
// may run out within a later one.
func (q *queue) take(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.renewed, key)
	rest := q.due[key].Sub(q.clock.Now())
	if rest <= 0 {
		return true
	}
	q.AddAfter(key, rest)
	return false
}

// fail queues a key again after its backoff, or after least if that is longer.
// It returns the pause: none for a key that has changed while it was worked on.
func (q *queue) fail(key string, least time.Duration) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.renewed[key] {
		return 0
	}
	q.failures[key]++
	d := max(wait.Jitter(q.pause(q.failures[key]), jitter), least)
	q.due[key] = q.clock.Now().Add(d)
	q.AddAfter(key, d)
	return d
}

// later queues a key again after d, without counting a failure.
func (q *queue) later(key string, d time.Duration) {
	q.forget(key)
	q.AddAfter(key, d)
}

// forget ends a key's backoff.
func (q *queue) forget(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.failures, key)
	delete(q.due, key)
}

// failed is how often a key has failed in a row.
func (q *queue) failed(key string) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.failures[key]
}

// remaining is how long a key is still in backoff.
func (q *queue) remaining(key string) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	due, ok := q.due[key]
	if !ok {
		return 0
	}
	return due.Sub(q.clock.Now())
}

// exponential doubles the pause with each failure.
func exponential(first, longest time.Duration) func(int) time.Duration {
	return func(failures int) time.Duration {
		d := first
		for ; failures > 1 && d < longest; failures-- {
			d *= 2
		}
		return min(d, longest)
	}
}
