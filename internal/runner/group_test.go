package runner

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const drain = 20 * time.Second

func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func TestGroupEndsWithItsContext(t *testing.T) {
	for name, part := range map[string]func(context.Context) error{
		"nil":             untilEnd,
		"context's error": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			g := NewGroup(ctx, drain)
			g.Go("a", part)
			g.Go("b", part)
			cancel()
			if err := g.Wait(); err != nil {
				t.Errorf("Wait() = %v, want nil: every part ended because it was told to", err)
			}
		})
	}
}

func TestFirstFailureStopsTheOthers(t *testing.T) {
	broken := errors.New("broken")
	g := NewGroup(t.Context(), drain)
	var stopped atomic.Bool
	g.Go("good", func(ctx context.Context) error { <-ctx.Done(); stopped.Store(true); return nil })
	g.Go("bad", func(context.Context) error { return broken })
	err := g.Wait()
	if !errors.Is(err, broken) || err.Error() != "running bad: broken" {
		t.Errorf("Wait() = %v, want the failure with the part's name", err)
	}
	if !stopped.Load() || g.Context().Err() == nil {
		t.Error("the other part was not waited for")
	}
}

func TestErrorAtTheEndIsTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g := NewGroup(ctx, drain)
	g.Go("a", func(ctx context.Context) error { <-ctx.Done(); return errors.New("cannot flush") })
	cancel()
	if err := g.Wait(); err == nil || err.Error() != "running a: cannot flush" {
		t.Errorf("Wait() = %v, want what went wrong while stopping", err)
	}
}

func TestPartThatEndsByItself(t *testing.T) {
	g := NewGroup(t.Context(), drain)
	g.Go("a", untilEnd)
	g.Go("b", func(context.Context) error { return nil })
	if err := g.Wait(); err == nil || err.Error() != "b ended by itself" {
		t.Errorf("Wait() = %v, want that b ended by itself", err)
	}
}

func TestPanicIsAFailure(t *testing.T) {
	g := NewGroup(t.Context(), drain)
	g.Go("a", untilEnd)
	g.Go("b", func(context.Context) error { panic("oh") })
	err := g.Wait()
	var p *PanicError
	if !errors.As(err, &p) || err.Error() != "running b: panic: oh" {
		t.Fatalf("Wait() = %v, want the panic as an error on one line", err)
	}
	if !strings.Contains(string(p.Stack), "TestPanicIsAFailure") {
		t.Errorf("the stack does not show where: %s", p.Stack)
	}
}

func TestDrainTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		g := NewGroup(ctx, drain)
		g.Go("good", untilEnd)
		g.Go("stuck", func(context.Context) error { <-stuck; return nil })
		time.Sleep(time.Hour)
		cancel()
		began := time.Now()
		if err := g.Wait(); !errors.Is(err, ErrDrainTimeout) {
			t.Errorf("Wait() = %v, want ErrDrainTimeout", err)
		}
		if took := time.Since(began); took != drain {
			t.Errorf("Wait() took %v, want %v", took, drain)
		}
		close(stuck)
	})
}

func TestDrainTimeoutAfterAFailureTellsBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		broken := errors.New("broken")
		g := NewGroup(t.Context(), drain)
		g.Go("stuck", func(context.Context) error { <-stuck; return nil })
		g.Go("bad", func(context.Context) error { return broken })
		if err := g.Wait(); !errors.Is(err, ErrDrainTimeout) || !errors.Is(err, broken) {
			t.Errorf("Wait() = %v, want ErrDrainTimeout and the failure that began it", err)
		}
		close(stuck)
	})
}

func TestSlowPartWithinTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := NewGroup(ctx, drain)
		g.Go("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(drain - time.Second); return nil })
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("Wait() = %v, want nil", err)
		}
	})
}

func TestDrainTimeoutIsToldThroughNestedGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		outer := NewGroup(ctx, drain+time.Second)
		outer.Go("inner", func(ctx context.Context) error {
			inner := NewGroup(ctx, drain)
			inner.Go("stuck", func(context.Context) error { <-stuck; return nil })
			return inner.Wait()
		})
		cancel()
		began := time.Now()
		if err := outer.Wait(); !errors.Is(err, ErrDrainTimeout) || !strings.HasPrefix(err.Error(), "running inner: ") {
			t.Errorf("Wait() = %v, want the inner group's ErrDrainTimeout", err)
		}
		if took := time.Since(began); took != drain {
			t.Errorf("Wait() took %v, want %v", took, drain)
		}
		close(stuck)
	})
}

func TestNoBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := NewGroup(ctx, 0)
		g.Go("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Hour); return nil })
		cancel()
		began := time.Now()
		if err := g.Wait(); err != nil || time.Since(began) != time.Hour {
			t.Errorf("Wait() = %v after %v, want nil when the part has ended", err, time.Since(began))
		}
	})
}

func TestSafely(t *testing.T) {
	broken := errors.New("broken")
	if err := Safely(func() error { return broken }); err != broken { //nolint:errorlint // exactly this one
		t.Errorf("Safely() = %v, want the error itself", err)
	}
	var none map[string]int
	var p *PanicError
	if err := Safely(func() error { none["a"] = 1; return nil }); !errors.As(err, &p) || !strings.Contains(err.Error(), "nil map") {
		t.Errorf("Safely() = %v, want the panic", err)
	}
}
