package leader

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// watchedLock notes when the lease was last renewed, by our own clock and
// counted from before the request: client-go keeps that to itself.
type watchedLock struct {
	resourcelock.Interface
	name   string
	ns     string
	clock  clock.PassiveClock
	denied chan error

	mu      sync.RWMutex
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
		name: name, ns: cfg.Namespace, clock: cfg.Clock, denied: make(chan error, 1),
	}
}

// Get notes who holds the lease.
func (l *watchedLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	rec, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.mu.Lock()
		l.holder = rec.HolderIdentity
		l.mu.Unlock()
	}
	return rec, raw, l.note(err)
}

// Create takes a lease that does not exist yet.
func (l *watchedLock) Create(ctx context.Context, rec resourcelock.LeaderElectionRecord) error {
	return l.renew(rec, func() error { return l.Interface.Create(ctx, rec) })
}

// Update renews, takes or releases the lease.
func (l *watchedLock) Update(ctx context.Context, rec resourcelock.LeaderElectionRecord) error {
	return l.renew(rec, func() error { return l.Interface.Update(ctx, rec) })
}

func (l *watchedLock) renew(rec resourcelock.LeaderElectionRecord, write func() error) error {
	begun := l.clock.Now()
	if err := write(); err != nil {
		return l.note(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = rec.HolderIdentity
	l.renewed = time.Time{}
	if rec.HolderIdentity == l.Identity() {
		l.renewed = begun
	}
	return nil
}

// note turns a refusal that waiting cannot mend into an error for acquire: an
// election that retries for ever on missing RBAC is invisible.
func (l *watchedLock) note(err error) error {
	if apierrors.IsForbidden(err) || (apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, "NamespaceNotFound")) {
		select {
		case l.denied <- fmt.Errorf("no access to lease %s/%s: %w; grant get, create and update on leases in that namespace", l.ns, l.name, err):
		default:
		}
	}
	return err
}

func (l *watchedLock) freshWithin(d time.Duration) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
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
