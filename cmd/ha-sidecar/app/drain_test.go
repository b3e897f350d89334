package app

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/internal/leader"
)

// worker is a controller with a call under way.
type worker struct {
	call time.Duration

	once     sync.Once
	stopping chan struct{}
	// broken is why the call was broken off.
	broken error
}

func newWorker(call time.Duration) *worker { return &worker{call: call, stopping: make(chan struct{})} }

func (w *worker) drain() { w.once.Do(func() { close(w.stopping) }) }

func (w *worker) run(ctx context.Context) error {
	select {
	case <-w.stopping:
	case <-ctx.Done():
	}
	select {
	case <-time.After(w.call):
	case <-ctx.Done():
		w.broken = context.Cause(ctx)
	}
	return nil
}

func (w *worker) part() part { return part{name: "worker", run: w.run, drain: w.drain} }

func TestDrain(t *testing.T) {
	const drain = 20 * time.Second
	lost := errors.New("lost")
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		call time.Duration
		// what ends the work, one second after the start.
		stop, lose, fail bool
		want             error
		broken           error
		took             time.Duration
	}{
		"stop, and a call that ends":                {call: drain - time.Second, stop: true, took: drain - time.Second},
		"stop, and a call that takes too long":      {call: time.Hour, stop: true, want: leader.ErrUnfinished, broken: context.Canceled, took: drain},
		"stop, and no call":                         {stop: true},
		"lost lease":                                {call: time.Hour, stop: true, lose: true, broken: lost},
		"another part fails":                        {call: 5 * time.Second, fail: true, want: failed, took: 5 * time.Second},
		"another part fails, and a call that hangs": {call: time.Hour, fail: true, want: leader.ErrUnfinished, broken: context.Canceled, took: drain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				held, end := context.WithCancelCause(t.Context())
				w := newWorker(c.call)
				other := part{name: "other", run: func(ctx context.Context) error {
					select {
					case <-ctx.Done():
						return ctx.Err()
					case <-time.After(time.Second):
						if c.fail {
							return failed
						}
						<-ctx.Done()
						return nil
					}
				}}
				time.AfterFunc(time.Second, func() {
					if c.stop {
						stop()
					}
					if c.lose {
						end(lost)
					}
				})
				began := time.Now()
				err := runParts(ctx, held, drain, []part{w.part(), other})
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("runParts() = %v, want %v", err, c.want)
				}
				if took := time.Since(began) - time.Second; took != c.took {
					t.Errorf("runParts() took %v after the end, want %v", took, c.took)
				}
				end(nil) // as the election does
				synctest.Wait()
				if !errors.Is(w.broken, c.broken) {
					t.Errorf("the call was broken off by %v, want %v", w.broken, c.broken)
				}
			})
		})
	}
}

func TestDrainThatGivesUpTellsTheFlag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		hang := make(chan struct{})
		err := runParts(ctx, t.Context(), time.Minute, []part{{name: "a", run: func(context.Context) error { <-hang; return nil }}})
		if err == nil || !strings.Contains(err.Error(), "--drain-timeout=1m0s") {
			t.Errorf("runParts() = %v, want one that names the flag", err)
		}
		close(hang)
	})
}

// lazy is an informer that takes its time to end.
type lazy struct {
	cache.SharedIndexInformer
	end chan struct{}
}

func (l lazy) Run(stop <-chan struct{}) { <-stop; <-l.end }
func (lazy) HasSynced() bool            { return true }

func TestCachesWaitForTheirInformers(t *testing.T) {
	shared := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	shared.Core().V1().Nodes().Informer()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	leases := lazy{end: make(chan struct{})}
	c := &caches{}
	done := make(chan error, 1)
	go func() { done <- c.run(ctx, shared, leases) }()
	for c.ready() != nil {
		select {
		case err := <-done:
			t.Fatalf("run() = %v before the end", err)
		case <-time.After(time.Millisecond):
		}
	}
	stop()
	for c.ready() == nil {
		<-time.After(time.Millisecond)
	}
	select {
	case <-done:
		t.Error("run() returned although an informer still runs")
	case <-time.After(50 * time.Millisecond):
	}
	close(leases.end)
	if err := <-done; err != nil {
		t.Errorf("run() = %v", err)
	}
}
