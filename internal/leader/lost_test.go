package leader

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// hang holds a request up until its caller gives it up.
func hang(ctx context.Context, _, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func fail(context.Context, string, string) error { return errors.New("no route to host") }

// The one thing that everything else stands on: whatever client-go's loop does,
// IsLeader is false when the deadline has passed since the last renewal that
// went through was begun.
func TestIsLeaderEndsWithTheDeadline(t *testing.T) {
	for name, hook := range map[string]func(context.Context, string, string) error{
		"renewals fail": fail,
		"renewals hang": hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newServer().start(t, "me", "a", "b")
				<-r.leads
				time.Sleep(7 * time.Second) // renewed at 6s
				synctest.Wait()
				r.link.on(hook)
				time.Sleep(deadline - time.Second - time.Millisecond)
				if !r.IsLeader() {
					t.Error("IsLeader() = false before the deadline")
				}
				time.Sleep(2 * time.Millisecond)
				if r.IsLeader() {
					t.Error("IsLeader() = true after the deadline")
				}
				if err := <-r.done; !errors.Is(err, ErrLost) {
					t.Errorf("Run() = %v, want ErrLost", err)
				}
				r.stop()
			})
		})
	}
}

// A renewal counts from its start: the server may have stored it just then.
func TestSlowRenewalCountsFromItsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newServer().start(t, "me", "a")
		<-r.leads
		time.Sleep(time.Second)
		slow := make(chan time.Time, 1)
		r.link.on(func(ctx context.Context, verb, _ string) error {
			if verb != "update" {
				return fail(ctx, "", "")
			}
			select {
			case slow <- time.Now():
				time.Sleep(5 * time.Second)
				return nil // the one slow renewal
			default:
				return errors.New("no route to host")
			}
		})
		if err := <-r.done; !errors.Is(err, ErrLost) {
			t.Errorf("Run() = %v, want ErrLost", err)
		}
		if lasted := time.Since(<-slow); lasted != deadline {
			t.Errorf("led for %v from the start of the last renewal, want %v", lasted, deadline)
		}
		r.stop()
	})
}

func TestLostReturnsAtOnceWhateverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		stuck := make(chan struct{})
		r := s.startWith(t, config(&link{server: s}, "me", "a", "b"), func(context.Context) error {
			<-stuck // a call that heeds no context
			return nil
		})
		<-r.leads
		synctest.Wait()
		began := time.Now()
		r.link.on(hang)
		err := <-r.done
		if !errors.Is(err, ErrLost) {
			t.Errorf("Run() = %v, want ErrLost", err)
		}
		if took := time.Since(began); took > deadline {
			t.Errorf("Run() returned after %v, want %v", took, deadline)
		}
		for _, ctx := range []context.Context{r.leading, r.held} {
			if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrLost) {
				t.Errorf("a context of the work has ended by %v, want ErrLost", context.Cause(ctx))
			}
		}
		// The work may still be acting: the others must wait for the lease to run out.
		if s.holder("a") != "me" || s.holder("b") != "me" {
			t.Errorf("a is held by %q, b by %q; want that no lease was released", s.holder("a"), s.holder("b"))
		}
		close(stuck)
		r.stop()
	})
}

func TestOneOfSeveralLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newServer().start(t, "me", "a", "b")
		<-r.leads
		r.link.on(func(ctx context.Context, verb, name string) error {
			if name == "b" {
				return fail(ctx, verb, name)
			}
			return nil
		})
		if err := <-r.done; !errors.Is(err, ErrLost) || r.IsLeader() {
			t.Errorf("Run() = %v, IsLeader() = %v; want ErrLost and false", err, r.IsLeader())
		}
		r.stop()
	})
}

// A drain is no truce: what is under way is broken off when the lease runs out.
func TestLostDuringADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		stuck := make(chan struct{})
		r := s.startWith(t, config(&link{server: s}, "me", "a"), func(context.Context) error {
			<-stuck
			return nil
		})
		<-r.leads
		synctest.Wait()
		r.stop()
		synctest.Wait()
		if r.held.Err() != nil {
			t.Fatal("the leadership ended with the stop")
		}
		began := time.Now()
		r.link.on(hang)
		if err := <-r.done; !errors.Is(err, ErrLost) || !errors.Is(context.Cause(r.held), ErrLost) {
			t.Errorf("Run() = %v, the leadership ended by %v; want ErrLost", err, context.Cause(r.held))
		}
		if took := time.Since(began); took > deadline {
			t.Errorf("Run() returned after %v, want %v", took, deadline)
		}
		close(stuck)
	})
}

// A process that was stopped and continued must not touch the lease, which is
// another's by now: client-go would first "release" it, by what it last saw.
func TestPausedLeaderWritesNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r := s.start(t, "me", "a")
		<-r.leads
		resumed := make(chan struct{})
		r.link.on(func(context.Context, string, string) error { <-resumed; return nil })
		time.Sleep(deadline - retry)
		s.give("a", "other", 15)
		before := countWrites(s.log(), "a")
		time.Sleep(time.Minute)
		r.link.on(nil)
		close(resumed)
		if err := <-r.done; !errors.Is(err, ErrLost) {
			t.Errorf("Run() = %v, want ErrLost", err)
		}
		time.Sleep(time.Minute)
		if got := s.holder("a"); got != "other" {
			t.Errorf("the lease is held by %q, want that other keeps it", got)
		}
		if after := countWrites(s.log(), "a"); after != before {
			t.Errorf("%d writes after the lease was lost: %v", after-before, s.log())
		}
		r.stop()
	})
}

// The lease was free again in between: what this process believes is from
// before, so it must not lead on as if nothing had been.
func TestLostLeaseIsNotTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		cfg := config(&link{server: s}, "me", "a")
		if err := cfg.complete(); err != nil {
			t.Fatal(err)
		}
		l := newWatchedLock(cfg, "a")
		close(l.turn)
		s.give("a", "", 1)
		rec, _, err := l.Get(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rec.HolderIdentity = "me"
		if err := l.Update(t.Context(), *rec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(deadline)
		s.give("a", "", 1)
		if _, _, err := l.Get(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Get() = %v after the lease ran out, want ErrLost", err)
		}
		if err := l.Update(t.Context(), *rec); !errors.Is(err, ErrLost) || s.holder("a") != "" {
			t.Errorf("Update() = %v and the lease is held by %q; want ErrLost and nobody", err, s.holder("a"))
		}
	})
}

func TestStolenLeaseIsNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		r := s.start(t, "me", "a")
		<-r.leads
		synctest.Wait()
		s.give("a", "thief", 15)
		if err := r.end(); err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
		if got := s.holder("a"); got != "thief" {
			t.Errorf("the lease is held by %q, want thief", got)
		}
	})
}

// What waiting cannot mend ends the process, with what to do.
func TestRefusalEndsTheElection(t *testing.T) {
	lease := coordinationv1.Resource("leases")
	kind := schema.GroupKind{Group: "coordination.k8s.io", Kind: "Lease"}
	for name, c := range map[string]struct {
		verb string
		err  error
		want string
	}{
		"no access":      {"get", apierrors.NewForbidden(lease, "a", errors.New("RBAC")), "grant get, create and update on leases in that namespace"},
		"no right to":    {"create", apierrors.NewForbidden(lease, "a", errors.New("RBAC")), "grant get, create and update"},
		"bad token":      {"get", apierrors.NewUnauthorized("who"), "credentials"},
		"bad name":       {"create", apierrors.NewInvalid(kind, "A", nil), "name"},
		"no namespace":   {"create", apierrors.NewNotFound(v1.Resource("namespaces"), ns), "create the namespace"},
		"server is away": {"get", errors.New("connection refused"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				l := &link{server: s}
				l.on(func(_ context.Context, verb, lease string) error {
					if verb == c.verb && lease == "b" {
						return c.err
					}
					return nil
				})
				r := s.startWith(t, config(l, "me", "a", "b"), func(context.Context) error { return nil })
				defer r.stop()
				if c.want == "" {
					time.Sleep(time.Hour)
					select {
					case err := <-r.done:
						t.Fatalf("Run() = %v although the server may come back", err)
					default:
						_ = r.end()
					}
					return
				}
				err := <-r.done
				if !errors.Is(err, c.err) || !strings.Contains(err.Error(), "lease csi/b") || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Run() = %v, want one that names lease csi/b and says %q", err, c.want)
				}
				if s.holder("a") != "" {
					t.Error("the first lease was not released")
				}
			})
		})
	}
}

// While the second is waited for, the first may be lost.
func TestFirstLostWhileWaitingForTheSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.give("b", "other", 3600)
		r := s.start(t, "me", "a", "b")
		time.Sleep(5 * time.Second)
		r.link.on(func(ctx context.Context, verb, name string) error {
			if name == "a" {
				return fail(ctx, verb, name)
			}
			return nil
		})
		if err := <-r.done; !errors.Is(err, ErrLost) || r.isLeading() {
			t.Errorf("Run() = %v, led: %v; want ErrLost and false", err, r.isLeading())
		}
		r.stop()
	})
}
