package attach

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

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

// lane is a queue with its own workers.
type lane struct {
	name string
	of   *lanes
	// retry is where what fails in this lane is tried again: another one, or this.
	retry *lane

	queue workqueue.TypedDelayingInterface[item]

	mu    sync.Mutex
	since map[item]time.Time
}

// open makes the queue, which has a goroutine until shutDown. Nothing may be
// added before.
func (l *lane) open() {
	l.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[item]{Clock: l.of.clock})
}

// add queues the item, unless it is in backoff: its time will come.
func (l *lane) add(it item) {
	if l.of.early(it) > 0 {
		return
	}
	l.mu.Lock()
	if _, waiting := l.since[it]; !waiting {
		l.since[it] = l.of.clock.Now()
	}
	l.mu.Unlock()
	l.queue.Add(it)
}

// addAfter queues the item later, without counting a failure.
func (l *lane) addAfter(it item, d time.Duration) { l.queue.AddAfter(it, d) }

// get waits for an item that is due; ok is false once the lane is shut down.
func (l *lane) get() (it item, ok bool) {
	for {
		it, shutdown := l.queue.Get()
		if shutdown {
			return item{}, false
		}
		l.mu.Lock()
		delete(l.since, it)
		l.mu.Unlock()
		early := l.of.early(it)
		if early <= 0 {
			return it, true
		}
		l.queue.Done(it)
		if l == l.retry {
			// The queue keeps the earliest time that an item was added for, and
			// has forgotten a later one.
			l.queue.AddAfter(it, early)
		}
	}
}

func (l *lane) done(it item) { l.queue.Done(it) }

// depth is the number of items that are due, and oldest how long the first of
// them has waited for a worker.
func (l *lane) depth() (n int, oldest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.of.clock.Now()
	for _, t := range l.since {
		oldest = max(oldest, now.Sub(t))
	}
	return len(l.since), oldest
}
