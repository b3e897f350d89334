package virtualnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
)

// pinger asks the provider whether the node is alive: one question at a time,
// and none is waited for longer than timeout, even if it ignores its context.
type pinger struct {
	provider kri.NodeProvider
	timeout  time.Duration

	mu     sync.Mutex
	flight chan struct{} // closed when the question under way is answered
	answer error
}

var errPingHangs = errors.New("the node's health check hangs")

func newPinger(provider kri.NodeProvider, timeout time.Duration) *pinger {
	return &pinger{provider: provider, timeout: timeout}
}

func (p *pinger) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	flight := p.ask(ctx)
	select {
	case <-flight:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.answer
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errPingHangs, ctx.Err())
	}
}

// ask joins the question under way, or asks.
func (p *pinger) ask(ctx context.Context) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flight != nil {
		return p.flight
	}
	flight := make(chan struct{})
	p.flight = flight
	go func() {
		err := p.provider.Ping(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.answer, p.flight = err, nil
		close(flight)
	}()
	return flight
}

// wait returns when no question is under way.
func (p *pinger) wait() {
	p.mu.Lock()
	flight := p.flight
	p.mu.Unlock()
	if flight != nil {
		<-flight
	}
}
