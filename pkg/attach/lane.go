package attach

import (
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// item is one piece of work. Exactly one of its fields is set.
type item struct {
	// key is a volume on a node.
	key volume.Key
	// uid is a VolumeAttachment whose key is not known, or, in trivial mode,
	// not needed.
	uid types.UID
	// pv is a PersistentVolume that is being deleted.
	pv string
}

// lane is a queue with its own workers and a backoff for each item.
//
// An item in backoff is not worked on before its time, whoever adds it: an
// update of an object must not defeat the backoff, least of all one that our
// own write caused. Only kick does, for changes that take the cause away.
type lane struct {
	name       string
	clock      clock.WithTicker
	start, max time.Duration
	queue      workqueue.TypedDelayingInterface[item]

	mu       sync.Mutex
	failures map[item]failure
	since    map[item]time.Time
}

type failure struct {
	count int
	until time.Time
}

func newLane(name string, clk clock.WithTicker, start, maximum time.Duration) *lane {
	return &lane{name: name, clock: clk, start: start, max: maximum, failures: map[item]failure{}, since: map[item]time.Time{}}
}

// open makes the queue, which has a goroutine until shutDown. Nothing may be
// added before.
func (l *lane) open() {
	l.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[item]{Clock: l.clock})
}

// add queues the item, unless it is in backoff: its time will come.
func (l *lane) add(it item) {
	l.mu.Lock()
	now := l.clock.Now()
	f, failed := l.failures[it]
	if failed && now.Before(f.until) {
		l.mu.Unlock()
		return
	}
	if _, waiting := l.since[it]; !waiting {
		l.since[it] = now
	}
	l.mu.Unlock()
	l.queue.Add(it)
}

// addAfter queues the item later, without counting a failure.
func (l *lane) addAfter(it item, d time.Duration) { l.queue.AddAfter(it, d) }

// retry counts a failure and queues the item after its backoff, which doubles
// from start to max, give or take a fifth.
func (l *lane) retry(it item) {
	l.mu.Lock()
	f := l.failures[it]
	d := l.start
	for i := 0; i < f.count && d < l.max; i++ {
		d *= 2
	}
	d = min(d, l.max)
	d = d*4/5 + time.Duration(rand.Int64N(int64(d)*2/5+1))
	f.count++
	f.until = l.clock.Now().Add(d)
	l.failures[it] = f
	l.mu.Unlock()
	l.queue.AddAfter(it, d)
}

// forget ends the item's backoff.
func (l *lane) forget(it item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failures, it)
}

// failed tells how often in a row the item has failed.
func (l *lane) failed(it item) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures[it].count
}

// get waits for an item that is due; ok is false once the lane is shut down.
func (l *lane) get() (it item, ok bool) {
	for {
		it, shutdown := l.queue.Get()
		if shutdown {
			return item{}, false
		}
		l.mu.Lock()
		delete(l.since, it)
		f, failed := l.failures[it]
		early := f.until.Sub(l.clock.Now())
		l.mu.Unlock()
		if !failed || early <= 0 {
			return it, true
		}
		l.queue.Done(it)
		// The queue keeps the earliest time that an item was added for, and has
		// forgotten a later one.
		l.queue.AddAfter(it, early)
	}
}

func (l *lane) done(it item) { l.queue.Done(it) }

func (l *lane) shutDown() { l.queue.ShutDown() }

// depth is the number of items that are due, and oldest how long the first of
// them has waited for a worker.
func (l *lane) depth() (n int, oldest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	for _, t := range l.since {
		oldest = max(oldest, now.Sub(t))
	}
	return len(l.since), oldest
}
