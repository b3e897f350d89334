package process

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// kept is how much of a program's output is kept for messages, in bytes.
const kept = 16 << 10

// output passes on what a program prints, keeps the end of it, and watches for
// the text that says it is ready.
type output struct {
	mu    sync.Mutex
	to    io.Writer
	text  string
	ready chan struct{}
	found bool
	end   []byte
}

func newOutput(to io.Writer, ready string) *output {
	o := &output{to: to, text: ready, ready: make(chan struct{})}
	if o.to == nil {
		o.to = io.Discard
	}
	if ready == "" {
		o.found = true
		close(o.ready)
	}
	return o
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.end = append(o.end, p...)
	if !o.found && bytes.Contains(o.end, []byte(o.text)) {
		o.found = true
		close(o.ready)
	}
	o.end = o.end[max(0, len(o.end)-kept):]
	// Whatever becomes of the copy, the program shall not block or die of it.
	_, _ = o.to.Write(p)
	return len(p), nil
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if text := strings.TrimSpace(string(o.end)); text != "" {
		return text
	}
	return "(nothing was printed)"
}
