// Package leader holds one or several leases and tells, by this process's own
// monotonic clock, whether they are held now.
//
// Several leases: the project's own first, then those of the sidecars that it
// replaces, so that an old one can never act beside it. Nothing acts until all
// are held. All are watched from the start, so that those of a leader that died
// run out together and not one after the other.
package leader

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// ErrLost is returned by Run when a lease was held and has run out or was
// taken. The caller must write nothing more.
var ErrLost = errors.New("leadership lost")

// ErrUnfinished is for lead to return, perhaps wrapped, when it leaves work
// behind that may still act. No lease is released then: the others wait until
// they run out, as they do for a leader that died.
var ErrUnfinished = errors.New("work was left behind; the leases are not released")

// Lead is the work of the leader. Its context ends when the work is to stop: with
// the context of Run, or with the leadership. Held ends with the leadership
// alone, for what must not be broken off by a mere stop.
type Lead func(ctx, held context.Context) error

// Config of an Elector.
type Config struct {
	// Client is used for leases alone, so that no other traffic delays a renewal.
	Client    kubernetes.Interface
	Namespace string
	// Leases are taken in this order.
	Leases []string
	// Identity is random when empty: a restarted process must not believe that
	// it still holds what its predecessor held.
	Identity string
	Labels   map[string]string

	LeaseDuration time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration
	// Clock decides whether the lease is still held.
	Clock clock.PassiveClock
}

func (c *Config) complete() error {
	if c.Client == nil {
		return errors.New("leader: Config.Client is required")
	}
	if c.Namespace == "" || len(c.Leases) == 0 {
		return errors.New("leader: a namespace and at least one lease name are required")
	}
	// The lease tells the others its duration in whole seconds.
	if c.LeaseDuration.Truncate(time.Second) <= c.RenewDeadline {
		return fmt.Errorf("leader: the lease duration %v, in whole seconds, must be longer than the renew deadline %v", c.LeaseDuration, c.RenewDeadline)
	}
	if float64(c.RenewDeadline) <= leaderelection.JitterFactor*float64(c.RetryPeriod) {
		return fmt.Errorf("leader: the renew deadline %v must be longer than %.1f times the retry period %v",
			c.RenewDeadline, leaderelection.JitterFactor, c.RetryPeriod)
	}
	if c.Identity == "" {
		c.Identity = uuid.NewString()
		if host, err := os.Hostname(); err == nil {
			c.Identity = host + "_" + c.Identity // so that people see which Pod it is
		}
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return nil
}

// Elector acquires the leases and watches over them.
type Elector struct {
	cfg   Config
	locks []*watchedLock

	mu   sync.RWMutex
	all  bool
	gone bool
}

// New validates cfg.
func New(cfg Config) (*Elector, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	e := &Elector{cfg: cfg}
	for _, name := range cfg.Leases {
		e.locks = append(e.locks, newWatchedLock(cfg, name))
	}
	return e, nil
}

// IsLeader reports whether every lease is held at this moment: all were
// acquired, none was lost, and none was last renewed longer ago than the renew
// deadline, measured from the start of the request that renewed it. The others
// wait for the longer lease duration, so the difference is the margin for
// calls already on their way.
func (e *Elector) IsLeader() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if !e.all || e.gone {
		return false
	}
	for _, l := range e.locks {
		if !l.freshWithin(e.cfg.RenewDeadline) {
			return false
		}
	}
	return true
}

// Waiting names the lease that another process holds and who holds it, for
// /readyz and logs; empty when all are held.
func (e *Elector) Waiting() string {
	for _, l := range e.locks {
		if holder := l.otherHolder(); holder != "" {
			return fmt.Sprintf("lease %s/%s is held by %s", e.cfg.Namespace, l.name, holder)
		}
	}
	return ""
}

// Run takes the leases in order, calls lead, keeps the leases for as long as
// that takes, whatever has become of ctx, and releases them when lead has
// returned, unless by ErrUnfinished. It returns nil when ctx ended first, lead's
// error, or ErrLost. After ErrLost lead may still be running, and no lease is
// released. A refusal that waiting cannot mend, such as missing RBAC, is
// returned at once. Run is called once.
func (e *Elector) Run(ctx context.Context, lead Lead) error {
	renew, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	lost := make(chan string, len(e.locks))
	var electors sync.WaitGroup
	defer electors.Wait()
	defer stop()

	started := make([]<-chan struct{}, len(e.locks))
	for i, l := range e.locks {
		var err error
		if started[i], err = e.start(renew, l, lost, &electors); err != nil {
			return err
		}
	}
	for i, l := range e.locks {
		if err := e.acquire(ctx, l, started[i], lost); err != nil || ctx.Err() != nil {
			return err
		}
	}
	e.set(true, false)
	klog.FromContext(ctx).Info("Leads", "leases", e.cfg.Leases, "identity", e.cfg.Identity)
	return e.lead(ctx, lost, lead)
}

// start lets one elector watch its lease. It takes it in its turn.
func (e *Elector) start(renew context.Context, l *watchedLock, lost chan<- string, wg *sync.WaitGroup) (<-chan struct{}, error) {
	started := make(chan struct{})
	le, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: l, Name: l.name, ReleaseOnCancel: true,
		LeaseDuration: e.cfg.LeaseDuration, RenewDeadline: e.cfg.RenewDeadline, RetryPeriod: e.cfg.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(started) },
			OnStoppedLeading: func() { lost <- l.name },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up election for lease %s: %w", l.name, err)
	}
	wg.Go(func() { le.Run(renew) })
	return started, nil
}

// acquire gives the lease its turn and waits until it is held.
func (e *Elector) acquire(ctx context.Context, l *watchedLock, started <-chan struct{}, lost <-chan string) error {
	close(l.turn)
	klog.FromContext(ctx).V(2).Info("Waits for lease", "lease", klog.KRef(e.cfg.Namespace, l.name))
	select {
	case <-started:
		return nil
	case name := <-lost:
		return fmt.Errorf("%w: lease %s/%s while waiting for %s", ErrLost, e.cfg.Namespace, name, l.name)
	case err := <-l.denied:
		return err
	case <-ctx.Done():
		return nil
	}
}

// lead runs the caller's work until it ends or the leases are lost.
func (e *Elector) lead(ctx context.Context, lost <-chan string, work Lead) error {
	held, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	leading, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	done := make(chan error, 1)
	go func() { done <- work(leading, held) }()
	expired := e.cfg.watchExpiry(held, e)
	var err error
	select {
	case err = <-done:
		e.end(errors.Is(err, ErrUnfinished))
		return err
	case name := <-lost:
		err = fmt.Errorf("%w: lease %s/%s", ErrLost, e.cfg.Namespace, name)
	case <-expired:
		err = fmt.Errorf("%w: no lease was renewed for %v", ErrLost, e.cfg.RenewDeadline)
	}
	// The work may be stuck in a call, and must not keep the process acting, so
	// nobody waits for it, nor for the API server.
	e.end(true)
	stop(err)
	cancel(err)
	return err
}

// end ends the leadership; the leases are released unless they are kept until
// they run out.
func (e *Elector) end(keep bool) {
	e.set(false, true)
	if !keep {
		return
	}
	for _, l := range e.locks {
		l.end()
	}
}

func (e *Elector) set(all, gone bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all, e.gone = all, gone
}

var _ resourcelock.Interface = (*watchedLock)(nil)
