package provisioner

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// told remembers what was last said of an object, so that waiting is told once.
type told struct {
	mu   sync.Mutex
	last map[types.UID]string
}

// news reports whether the message is another than the last one.
func (t *told) news(uid types.UID, message string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last[uid] == message {
		return false
	}
	if t.last == nil {
		t.last = map[types.UID]string{}
	}
	t.last[uid] = message
	return true
}

// forgetAll is for the start: until the handlers are there, no event says that an
// object has gone.
func (t *told) forgetAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = nil
}

func (t *told) forget(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.last, uid)
}
