package faults

import (
	"fmt"
	"sync"
)

// phase is when the process is killed, as seen from one request.
type phase string

const (
	// before: the request has left ha-sidecar and goes nowhere.
	before phase = "before"
	// replyLost: it was carried out, and the reply does not arrive.
	replyLost phase = "reply lost"
	// after: the reply was delivered.
	after phase = "after"
)

var phases = []phase{before, replyLost, after}

// point is a request of a play: the nth of its name since the trap was set.
type point struct {
	What string `json:"request"`
	Nth  int    `json:"nth"`
}

func (p point) String() string { return fmt.Sprintf("%s #%d", p.What, p.Nth) }

// trap waits for one request and kills who sent it. It also writes down which
// requests there were.
type trap struct {
	mu     sync.Mutex
	seen   []point
	counts map[string]int
	at     point
	phase  phase
	kill   func()
	sprung chan struct{}
	// taken: the request has come, and the process is about to die.
	taken bool
}

// set begins a play. With no phase the trap only writes down.
func (t *trap) set(at point, ph phase, kill func()) (sprung <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen, t.counts = nil, map[string]int{}
	t.at, t.phase, t.kill, t.sprung, t.taken = at, ph, kill, make(chan struct{}), false
	return t.sprung
}

// clear ends a play and returns its requests in order.
func (t *trap) clear() []point {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.seen
	t.seen, t.counts, t.phase, t.kill = nil, nil, "", nil
	return seen
}

// enter is called with each request; the phase is empty unless the trap is for it.
func (t *trap) enter(what string) phase {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		return ""
	}
	t.counts[what]++
	p := point{what, t.counts[what]}
	t.seen = append(t.seen, p)
	if t.kill == nil || p != t.at {
		return ""
	}
	t.taken = true
	return t.phase
}

// settle returns once a process that is about to die is dead: a play may be over
// by what its last request did.
func (t *trap) settle() {
	t.mu.Lock()
	sprung, taken := t.sprung, t.taken
	t.mu.Unlock()
	if taken {
		<-sprung
	}
}

// spring kills the process and returns once it is dead.
func (t *trap) spring() {
	t.mu.Lock()
	kill, sprung := t.kill, t.sprung
	t.kill = nil
	t.mu.Unlock()
	if kill != nil {
		kill()
		close(sprung)
	}
}
