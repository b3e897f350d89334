package leader

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// watchedLock notes when the lease was last renewed, by our own clock and
// counted from before the request: client-go keeps that to itself. A lease that
// has run out stays lost: nothing is asked of it and nothing is written to it
// any more, since client-go would take it again, or "release" it without having
// seen that somebody else holds it by now.
type watchedLock struct {
	resourcelock.Interface
	name     string
	ns       string
	deadline time.Duration
	clock    clock.PassiveClock
	denied   chan error
	// turn is closed when the lease may be taken: all before it are held.
	turn chan struct{}

	mu      sync.RWMutex
	held    bool
	over    bool
	renewed time.Time
	holder  string
}

func newWatchedLock(cfg Config, name string) *watchedLock {
	return &watchedLock{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: name},
			Client:     cfg.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
			Labels:     cfg.Labels,
		},
		name: name, ns: cfg.Namespace, deadline: cfg.RenewDeadline, clock: cfg.Clock, denied: make(chan error, 1), turn: make(chan struct{}),
	}
}

// Get notes who holds the lease.
func (l *watchedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := l.usable(); err != nil {
		return nil, nil, err
	}
	rec, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return nil, nil, l.note(err)
	}
	select {
	case <-l.denied: //nolint:errcheck // not any more
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = rec.HolderIdentity
	return rec, raw, nil
}

// Create takes a lease that does not exist yet.
func (l *watchedLock) Create(ctx context.Context, rec resourcelock.LeaderElectionRecord) error {
	return l.renew(ctx, rec, func() error { return l.Interface.Create(ctx, rec) })
}

// Update renews, takes or releases the lease. Only its holder may release it.
func (l *watchedLock) Update(ctx context.Context, rec resourcelock.LeaderElectionRecord) error {
	if holder := l.otherHolder(); rec.HolderIdentity == "" && holder != "" {
		return fmt.Errorf("%w: lease %s/%s is held by %s", ErrLost, l.ns, l.name, holder)
	}
	return l.renew(ctx, rec, func() error { return l.Interface.Update(ctx, rec) })
}

// renew writes when it is the lease's turn. What was read before a wait for that
// is protected by the lease's resourceVersion.
func (l *watchedLock) renew(ctx context.Context, rec resourcelock.LeaderElectionRecord, write func() error) error {
	select {
	case <-l.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := l.usable(); err != nil {
		return err
	}
	begun := l.clock.Now()
	if err := write(); err != nil {
		return l.note(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = rec.HolderIdentity
	l.renewed = time.Time{}
	if rec.HolderIdentity == l.Identity() {
		l.held, l.renewed = true, begun
	}
	return nil
}

// usable is ErrLost once the lease was held and has run out.
func (l *watchedLock) usable() error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.over || (l.held && !l.freshLocked(l.deadline)) {
		return fmt.Errorf("%w: lease %s/%s has run out", ErrLost, l.ns, l.name)
	}
	return nil
}

// end lets go of the lease without releasing it: work that is stuck may still
// go on, and the others wait for the lease to run out.
func (l *watchedLock) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
}

// note turns a refusal that waiting cannot mend into an error for acquire: an
// election that retries for ever on missing RBAC is invisible.
func (l *watchedLock) note(err error) error {
	var what string
	switch {
	case apierrors.IsForbidden(err):
		what = "grant get, create and update on leases in that namespace"
	case apierrors.IsUnauthorized(err):
		what = "see that the credentials are those of this cluster and still valid"
	case apierrors.IsInvalid(err):
		what = "see the name and the labels of the lease"
	case namespaceMissing(err):
		what = "create the namespace, or name another one by --leader-election-namespace"
	default:
		return err
	}
	select {
	case l.denied <- fmt.Errorf("no access to lease %s/%s: %w; %s", l.ns, l.name, err, what):
	default:
	}
	return err
}

// namespaceMissing tells a missing namespace from a missing lease, which is
// simply made.
func namespaceMissing(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == "namespaces"
}

func (l *watchedLock) freshWithin(d time.Duration) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.freshLocked(d)
}

func (l *watchedLock) freshLocked(d time.Duration) bool {
	return !l.renewed.IsZero() && l.clock.Now().Sub(l.renewed) < d
}

// expiresAt is when the lease stops counting as held unless renewed before.
func (l *watchedLock) expiresAt(d time.Duration) time.Time {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.renewed.Add(d)
}

func (l *watchedLock) otherHolder() string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.holder == l.Identity() {
		return ""
	}
	return l.holder
}
