package app

import (
	"context"
	"sync/atomic"

	"github.com/ha-sidecar/ha-sidecar/internal/leader"
)

// elector is an election, held or not.
type elector interface {
	IsLeader() bool
	Waiting() string
	Run(ctx context.Context, lead leader.Lead) error
}

// election is the elector once it is known: the clients are made before it and
// must already ask it. Until then nobody leads.
type election struct{ current atomic.Pointer[elector] }

func (e *election) set(el elector) { e.current.Store(&el) }

// IsLeader reports whether this process may write now.
func (e *election) IsLeader() bool {
	el := e.current.Load()
	return el != nil && (*el).IsLeader()
}

// Waiting names what is waited for.
func (e *election) Waiting() string {
	if el := e.current.Load(); el != nil {
		return (*el).Waiting()
	}
	return ""
}

// Run runs lead under the election.
func (e *election) Run(ctx context.Context, lead leader.Lead) error {
	return (*e.current.Load()).Run(ctx, lead)
}
