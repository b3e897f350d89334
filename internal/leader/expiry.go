package leader

import (
	"context"
	"regexp"
	"time"

	"k8s.io/utils/clock"
)

// watchExpiry closes the returned channel when a lease has not been renewed in
// time, whatever client-go's renewal loop is doing: it may be stuck in a
// request, or the process may have been stopped and continued.
func (c Config) watchExpiry(ctx context.Context, e *Elector) <-chan struct{} {
	expired := make(chan struct{})
	timers, ok := c.Clock.(clock.WithTicker)
	if !ok {
		timers = clock.RealClock{}
	}
	go func() {
		for {
			now := c.Clock.Now()
			next := now.Add(c.RenewDeadline)
			for _, l := range e.locks {
				if at := l.expiresAt(c.RenewDeadline); at.Before(next) {
					next = at
				}
			}
			if !next.After(now) {
				close(expired)
				return
			}
			timer := timers.NewTimer(max(next.Sub(now), time.Millisecond))
			select {
			case <-timer.C():
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	}()
	return expired
}

var notInName = regexp.MustCompile("[^a-zA-Z0-9-]")

// SanitizeName turns a lock name into the name of its Lease as the upstream
// sidecars do: what a name may not hold becomes a dash, and a trailing dash is
// followed by an X.
func SanitizeName(name string) string {
	name = notInName.ReplaceAllString(name, "-")
	if len(name) > 0 && name[len(name)-1] == '-' {
		name += "X"
	}
	return name
}

// None is the election of a process that runs without one: it always leads.
type None struct{}

// IsLeader is always true.
func (None) IsLeader() bool { return true }

// Waiting is always empty.
func (None) Waiting() string { return "" }

// Run calls lead at once; its leadership never ends.
func (None) Run(ctx context.Context, lead Lead) error { return lead(ctx, context.WithoutCancel(ctx)) }
