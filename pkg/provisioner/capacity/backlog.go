package capacity

import (
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// refreshGap is the least time between two looks at an item that volumes come to
// or go from: a burst of them is one look.
const refreshGap = time.Second

// backlog is the items that are to be looked at, now or later. One item is in it
// once, and with one worker at a time. An item in backoff waits for its time,
// whoever adds it: volumes that come and go must not press a driver that fails.
type backlog struct {
	clock            clock.WithTicker
	poll, start, max time.Duration

	mu       sync.Mutex
	queue    workqueue.TypedDelayingInterface[item] // nil until open
	failures map[item]failure
	looked   map[item]time.Time
}

type failure struct {
	count int
	until time.Time
}

func newBacklog(cfg Config) *backlog {
	return &backlog{
		clock: cfg.Clock, poll: cfg.PollInterval, start: cfg.RetryIntervalStart, max: cfg.RetryIntervalMax,
		failures: map[item]failure{}, looked: map[item]time.Time{},
	}
}

// open makes the queue, which has goroutines until it is shut down. What is added
// before is lost.
func (b *backlog) open() workqueue.TypedDelayingInterface[item] {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[item]{
		Name: "csistoragecapacity", Clock: b.clock,
	})
	return b.queue
}

// add has the item looked at now, or when its backoff ends.
func (b *backlog) add(it item) { b.addAfter(it, 0) }

// refresh has the item looked at soon, and not more often than each refreshGap.
func (b *backlog) refresh(it item) {
	b.mu.Lock()
	wait := b.looked[it].Add(refreshGap).Sub(b.clock.Now())
	b.mu.Unlock()
	b.addAfter(it, wait)
}

// addAfter has the item looked at after d, or when its backoff ends.
func (b *backlog) addAfter(it item, d time.Duration) {
	b.mu.Lock()
	queue := b.queue
	d = max(d, b.early(it))
	b.mu.Unlock()
	if queue != nil {
		queue.AddAfter(it, d)
	}
}

// early is how long the item's backoff still lasts. The caller holds mu.
func (b *backlog) early(it item) time.Duration {
	f, failed := b.failures[it]
	if !failed {
		return 0
	}
	return f.until.Sub(b.clock.Now())
}

// get waits for an item that is due; ok is false once the queue is shut down.
func (b *backlog) get(queue workqueue.TypedDelayingInterface[item]) (it item, ok bool) {
	for {
		it, shutdown := queue.Get()
		if shutdown {
			return item{}, false
		}
		b.mu.Lock()
		early := b.early(it)
		b.mu.Unlock()
		if early <= 0 {
			return it, true
		}
		queue.Done(it)
		// The queue keeps the earliest time that an item was added for, and has
		// forgotten a later one.
		queue.AddAfter(it, early)
	}
}

// looking notes that the driver is asked about the item, and returns whether that
// is the first time.
func (b *backlog) looking(it item) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, before := b.looked[it]
	b.looked[it] = b.clock.Now()
	return !before
}

// settled ends the item's backoff; it is looked at again when its poll is due. The
// first poll comes at any time within the interval: all items begin at once, and
// are not to go on so.
func (b *backlog) settled(it item, first bool) {
	b.forget(it)
	wait := around(b.poll)
	if first {
		wait = time.Duration(rand.Int64N(int64(b.poll)) + 1)
	}
	b.addAfter(it, wait)
}

// fail counts a failure and has the item looked at after its backoff, which
// doubles from start to max, give or take a fifth. It returns how often in a row
// the item has failed.
func (b *backlog) fail(it item) int {
	b.mu.Lock()
	f := b.failures[it]
	d := b.start
	for i := 0; i < f.count && d < b.max; i++ {
		d *= 2
	}
	f.count++
	f.until = b.clock.Now().Add(around(min(d, b.max)))
	b.failures[it] = f
	b.mu.Unlock()
	b.addAfter(it, 0)
	return f.count
}

// forget ends the item's backoff.
func (b *backlog) forget(it item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, it)
}

// drop forgets the item altogether.
func (b *backlog) drop(it item) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, it)
	delete(b.looked, it)
}

// failing is the number of items in backoff.
func (b *backlog) failing() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.failures)
}

// around is d, give or take a fifth.
func around(d time.Duration) time.Duration {
	return d*4/5 + time.Duration(rand.Int64N(int64(d)*2/5+1))
}
