package attach

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// lanes are the queues of the controller, and the backoff of what has failed.
//
// Attaches and detaches wait for workers of their own, so that neither holds up
// the other; and what has failed before is tried again in a further lane of each,
// so that calls which hang again and again hold up neither the fresh ones nor
// those of the other kind.
//
// An item in backoff is not worked on before its time, whoever adds it: an
// update of an object must not defeat the backoff, least of all one that our
// own write caused. Only forget does, for changes that take the cause away.
type lanes struct {
	clock          clock.WithTicker
	start, max     time.Duration
	attach, detach *lane

	mu       sync.Mutex
	failures map[item]failure
}

type failure struct {
	count int
	until time.Time
}

func newLanes(clk clock.WithTicker, start, maximum time.Duration) *lanes {
	ls := &lanes{clock: clk, start: start, max: maximum, failures: map[item]failure{}}
	ls.attach, ls.detach = ls.pair("attach"), ls.pair("detach")
	return ls
}

// pair makes a lane with the one for what has failed in it.
func (ls *lanes) pair(name string) *lane {
	retry := &lane{name: name + "-retry", of: ls, since: map[item]time.Time{}}
	retry.retry = retry
	return &lane{name: name, of: ls, since: map[item]time.Time{}, retry: retry}
}

func (ls *lanes) all() []*lane {
	return []*lane{ls.attach, ls.attach.retry, ls.detach, ls.detach.retry}
}

func (ls *lanes) open() {
	for _, l := range ls.all() {
		l.open()
	}
}

func (ls *lanes) shutDown() {
	for _, l := range ls.all() {
		l.queue.ShutDown()
	}
}

// add queues the item where it belongs: fresh work in l, and what has failed
// before with its like.
func (ls *lanes) add(l *lane, it item) {
	if ls.failed(it) > 0 {
		l = l.retry
	}
	l.add(it)
}

// fail counts a failure and queues the item with its like after its backoff, which
// doubles from start to max, or to a lower limit, give or take a fifth.
func (ls *lanes) fail(l *lane, it item, limit time.Duration) {
	ls.mu.Lock()
	f := ls.failures[it]
	limit = max(min(limit, ls.max), ls.start)
	d := ls.start
	for i := 0; i < f.count && d < limit; i++ {
		d *= 2
	}
	d = min(d, limit)
	d = d*4/5 + time.Duration(rand.Int64N(int64(d)*2/5+1))
	f.count++
	f.until = ls.clock.Now().Add(d)
	ls.failures[it] = f
	ls.mu.Unlock()
	l.retry.addAfter(it, d)
}

// forget ends the item's backoff.
func (ls *lanes) forget(it item) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.failures, it)
}

// failed tells how often in a row the item has failed.
func (ls *lanes) failed(it item) int {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.failures[it].count
}

// early is how long the item's backoff still lasts.
func (ls *lanes) early(it item) time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	f, failed := ls.failures[it]
	if !failed {
		return 0
	}
	return f.until.Sub(ls.clock.Now())
}

// longWait is how long an item may wait for a worker before that is told.
const longWait = time.Minute

// watch tells, again and again, of lanes in which items wait for long: a backlog
// is in nobody's log otherwise, since what waits has not failed.
func (ls *lanes) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-ls.clock.After(longWait / 2):
		}
		for _, l := range ls.all() {
			if n, oldest := l.depth(); oldest > longWait {
				klog.FromContext(ctx).Info("Work waits long for a worker: the driver is slow, or --worker-threads is too low", "lane", l.name, "waiting", n, "oldest", oldest.Round(time.Second))
			}
		}
	}
}
