package health

import (
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/runner"
)

// panicPause is how long the event loop leaves what is due alone after a panic
// in it: an entry that panics each time must not make the loop spin.
const panicPause = time.Second

// caught calls f and returns a panic in it as an error, counted and logged with
// its stack: one bad object, or one bad answer, does not stop the rest.
func (m *instruments) caught(logger klog.Logger, f func() error) error {
	err := runner.Safely(f)
	var p *runner.PanicError
	if errors.As(err, &p) {
		m.panics.Inc()
		logger.Error(err, "Caught a panic", "stack", string(p.Stack))
	}
	return err
}
