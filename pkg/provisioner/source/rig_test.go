package source

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// rig is a Protection on a fake API, inside a synctest bubble.
type rig struct {
	api    *fakeAPI
	config func(*ProtectionConfig)

	mu      sync.Mutex
	intents map[Ref]int
	leader  bool
	logged  bytes.Buffer

	// early is called before Run.
	early func(*Protection)

	p    *Protection
	ctx  context.Context
	stop func()
}

func newRig(objs ...runtime.Object) *rig {
	return &rig{api: newFakeAPI(objs...), intents: map[Ref]int{}, leader: true}
}

// Write takes the log.
func (r *rig) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logged.Write(b)
}

func (r *rig) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.logged.String()
}

func (r *rig) inUse(ref Ref) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.intents[ref] > 0
}

func (r *rig) intent(ref Ref, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.intents[ref] += n
}

func (r *rig) lead(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = yes
}

func (r *rig) fault(f func(method, resource string) error) {
	r.api.set(func() { r.api.fault = f })
}

// start begins a process.
func (r *rig) start() {
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(r), textlogger.Verbosity(2)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	factory := informers.NewSharedInformerFactory(r.api.client(), 0)
	cfg := ProtectionConfig{
		DriverName: testDriver, Dynamic: r.api.dynamic(), InUse: r.inUse, SweepInterval: 5 * time.Minute,
		Claims: factory.Core().V1().PersistentVolumeClaims(), Volumes: factory.Core().V1().PersistentVolumes(),
		IsLeader: func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.leader },
	}
	if r.config != nil {
		r.config(&cfg)
	}
	// A channel from outside of the bubble would keep it from being idle.
	r.api.set(func() { r.api.changed = make(chan struct{}) })
	r.p, r.ctx = must(NewProtection(cfg)), ctx
	if r.early != nil {
		r.early(r.p)
	}
	factory.Start(ctx.Done())
	done := make(chan error, 1)
	go func() { done <- r.p.Run(ctx) }()
	r.stop = func() {
		r.stop = func() {}
		cancel()
		if err := <-done; err != nil {
			panic(err)
		}
		factory.Shutdown()
	}
	r.settle(time.Second)
}

func (r *rig) restart() {
	r.stop()
	r.start()
}

// settle lets d pass and all that is due happen.
func (r *rig) settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// run runs f with a started Protection.
func (r *rig) run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r.start()
		defer func() { r.stop() }()
		f(t)
	})
}

// has reports whether the object is there and has the finalizer.
func (r *rig) has(key id, finalizer string) bool {
	u := r.api.get(key)
	return u != nil && slices.Contains(u.GetFinalizers(), finalizer)
}

func (r *rig) protected() bool { return r.has(snapID, SnapshotFinalizer) }

func (r *rig) wantProtected(t *testing.T, want bool, when string) {
	t.Helper()
	if got := r.protected(); got != want {
		t.Errorf("%s: the snapshot is protected: %v, want %v\n%s", when, got, want, r.log())
	}
}

// logs counts the lines of the log that say something.
func (r *rig) logs(what string) int { return strings.Count(r.log(), what) }
