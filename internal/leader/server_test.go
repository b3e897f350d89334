package leader

import (
	"context"
	"strconv"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// server keeps leases as the API server does, resourceVersion included, which
// client-go's fake does not check.
type server struct {
	mu     sync.Mutex
	leases map[string]*coordinationv1.Lease
	// writes are "VERB NAME HOLDER", in order.
	writes []string
	last   int
}

func newServer() *server { return &server{leases: map[string]*coordinationv1.Lease{}} }

// holder is who holds the lease, empty for nobody.
func (s *server) holder(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.leases[name]; l != nil && l.Spec.HolderIdentity != nil {
		return *l.Spec.HolderIdentity
	}
	return ""
}

// give makes somebody else hold the lease.
func (s *server) give(name, holder string, seconds int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	now := metav1.NowMicro()
	s.leases[name] = &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, ResourceVersion: strconv.Itoa(s.last)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now, AcquireTime: &now},
	}
}

func (s *server) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.writes...)
}

// link is one process's way to the server. Its hook stands before each request
// and may fail it, hold it up, or let it pass.
type link struct {
	kubernetes.Interface
	coordinationclient.CoordinationV1Interface
	coordinationclient.LeaseInterface
	server *server

	mu   sync.Mutex
	hook func(ctx context.Context, verb, name string) error
}

func (l *link) CoordinationV1() coordinationclient.CoordinationV1Interface { return l }
func (l *link) Leases(string) coordinationclient.LeaseInterface            { return l }

// on sets the hook.
func (l *link) on(hook func(ctx context.Context, verb, name string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hook = hook
}

func (l *link) pass(ctx context.Context, verb, name string) error {
	l.mu.Lock()
	hook := l.hook
	l.mu.Unlock()
	if hook != nil {
		if err := hook(ctx, verb, name); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (l *link) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if err := l.pass(ctx, "get", name); err != nil {
		return nil, err
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if lease := l.server.leases[name]; lease != nil {
		return lease.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), name)
}

func (l *link) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	if err := l.pass(ctx, "create", lease.Name); err != nil {
		return nil, err
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.server.leases[lease.Name] != nil {
		return nil, apierrors.NewAlreadyExists(coordinationv1.Resource("leases"), lease.Name)
	}
	return l.server.put("create", lease), nil
}

func (l *link) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := l.pass(ctx, "update", lease.Name); err != nil {
		return nil, err
	}
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	now := l.server.leases[lease.Name]
	if now == nil || now.ResourceVersion != lease.ResourceVersion {
		return nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, nil)
	}
	return l.server.put("update", lease), nil
}

// put stores a lease; the caller holds mu.
func (s *server) put(verb string, lease *coordinationv1.Lease) *coordinationv1.Lease {
	s.last++
	stored := lease.DeepCopy()
	stored.ResourceVersion = strconv.Itoa(s.last)
	s.leases[lease.Name] = stored
	s.writes = append(s.writes, verb+" "+lease.Name+" "+*lease.Spec.HolderIdentity)
	return stored.DeepCopy()
}

// replica is an Elector with its link and what Run has come to.
type replica struct {
	*Elector
	link *link

	leads   chan struct{}
	stop    context.CancelFunc
	done    chan error
	leading context.Context
	held    context.Context
}

// start runs a replica whose work ends with its context.
func (s *server) start(t *testing.T, identity string, leases ...string) *replica {
	t.Helper()
	return s.startWith(t, config(&link{server: s}, identity, leases...), func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
}

func (s *server) startWith(t *testing.T, cfg Config, work func(context.Context) error) *replica {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	r := &replica{Elector: e, link: cfg.Client.(*link), leads: make(chan struct{}), stop: stop, done: make(chan error, 1)}
	go func() {
		r.done <- e.Run(ctx, func(ctx, held context.Context) error {
			r.leading, r.held = ctx, held
			close(r.leads)
			return work(ctx)
		})
	}()
	return r
}
