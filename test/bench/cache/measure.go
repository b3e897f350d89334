package main

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"
)

// world is how many attachments there are on how many nodes.
type world struct {
	Attachments int `json:"attachments"`
	Nodes       int `json:"nodes"`
}

func (w world) String() string {
	return fmt.Sprintf("%d attachments on %d nodes", w.Attachments, w.Nodes)
}

// perNode is the largest number of attachments that a node has.
func (w world) perNode() int { return (w.Attachments + w.Nodes - 1) / w.Nodes }

// worlds have up to 5000 nodes, and up to 50 attachments on a node.
var worlds = []world{{1_000, 20}, {1_000, 1_000}, {10_000, 200}, {10_000, 5_000}, {100_000, 2_000}, {100_000, 5_000}}

// Run is what one side did in one run. Times are in nanoseconds.
type Run struct {
	ForNode float64 `json:"forNodeNanoseconds"`
	// Idle is a tick in which no node is to be reported, Busy one in which one
	// node is.
	Idle       float64 `json:"idleTickNanoseconds"`
	IdleAllocs float64 `json:"idleTickAllocations"`
	Busy       float64 `json:"busyTickNanoseconds"`
	Add        float64 `json:"addNanoseconds"`
	Delete     float64 `json:"deleteNanoseconds"`
	// Bytes is of the heap for each attachment, without its name, its spec and
	// its device path.
	Bytes float64 `json:"bytesPerAttachment"`
}

// for each measurement, at least so long and so often.
const (
	atLeast    = 50 * time.Millisecond
	leastTimes = 10
)

// timed gives the nanoseconds of one do.
func timed(do func(i int)) float64 {
	do(0)
	for n := leastTimes; ; n *= 2 {
		begun := time.Now()
		for i := range n {
			do(i)
		}
		if took := time.Since(begun); took >= atLeast {
			return float64(took.Nanoseconds()) / float64(n)
		}
	}
}

// measure fills a cache and asks it everything.
func measure(w world, all []attachment, make func() subject) (r Run, err error) {
	before := heap()
	s := make()
	for i := range all {
		if err := s.add(&all[i]); err != nil {
			return r, err
		}
	}
	if got := s.tick(); got != w.Nodes {
		return r, fmt.Errorf("%d nodes are to be reported at first, want %d", got, w.Nodes)
	}
	r.Bytes = float64(heap()-before) / float64(len(all))
	for i := range min(w.Nodes, len(all)) {
		if got := s.forNode(all[i].node); got != len(all)/w.Nodes {
			return r, fmt.Errorf("node %s has %d pairs, want %d", all[i].node, got, len(all)/w.Nodes)
		}
		if i == leastTimes {
			break
		}
	}
	r.ForNode = timed(func(i int) { s.forNode(all[i%len(all)].node) })
	r.Idle = timed(func(int) { s.tick() })
	r.IdleAllocs = allocations(func() { s.tick() })
	r.Busy = timed(func(i int) {
		a := &all[i%len(all)]
		if e := s.unreport(a); e != nil {
			err = e
		}
		s.report(a)
		s.tick()
	})
	r.Add, r.Delete = churn(s, all)
	runtime.KeepAlive(s)
	return r, err
}

const (
	// block is how many attachments are deleted and added again at once.
	block  = 500
	blocks = 40
)

// churn deletes attachments, here and there, and adds them again.
func churn(s subject, all []attachment) (add, remove float64) {
	random := rand.New(rand.NewPCG(1, 2)) // the same for both sides
	var adding, removing time.Duration
	for range blocks {
		order := random.Perm(len(all))[:block]
		begun := time.Now()
		for _, i := range order {
			s.delete(&all[i])
		}
		between := time.Now()
		for _, i := range order {
			_ = s.add(&all[i]) // it was added before
		}
		removing, adding = removing+between.Sub(begun), adding+time.Since(between)
		s.tick()
	}
	return float64(adding.Nanoseconds()) / (block * blocks), float64(removing.Nanoseconds()) / (block * blocks)
}

// heap is what is in use after garbage is gone.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// allocations of one do, over many.
func allocations(do func()) float64 {
	const times = 100
	var before, after runtime.MemStats
	do()
	runtime.ReadMemStats(&before)
	for range times {
		do()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / times
}
