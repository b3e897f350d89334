package health

import "time"

// leases tells which nodes are seen to be alive. Only a change of renewTime
// that this process observed counts, timed by its own clock: neither the remote
// clock nor what was found at first sight proves anything.
type leases struct {
	grace time.Duration
	nodes map[string]leaseSeen
}

type leaseSeen struct {
	renewTime time.Time
	// changed is when another renewTime than the one before was observed; zero
	// while only one was seen.
	changed time.Time
}

func newLeases(grace time.Duration) *leases {
	return &leases{grace: grace, nodes: map[string]leaseSeen{}}
}

// observe takes a node's renewTime, and reports whether it is a renewal.
func (l *leases) observe(node string, renewTime, now time.Time) bool {
	seen, known := l.nodes[node]
	if known && seen.renewTime.Equal(renewTime) {
		return false
	}
	next := leaseSeen{renewTime: renewTime}
	if known {
		next.changed = now
	}
	l.nodes[node] = next
	return known
}

func (l *leases) forget(node string) { delete(l.nodes, node) }

// fresh reports whether a renewal was observed within the grace.
func (l *leases) fresh(node string, now time.Time) bool {
	changed := l.nodes[node].changed
	return !changed.IsZero() && now.Sub(changed) <= l.grace
}
