package fault

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
)

// ErrUnknown: no fault of that ID.
var ErrUnknown = errors.New("no such fault")

var errClosed = status.Error(codes.Unavailable, "the driver is shutting down")

// Registry holds the faults of one process.
type Registry struct {
	methods []string
	node    string
	clock   clock.Clock
	closed  chan struct{}

	mu      sync.Mutex
	next    int
	faults  []*injected
	changed chan struct{} // closed and replaced at each change
}

type injected struct {
	Status
	release chan struct{}
}

// NewRegistry makes an empty one for a process that answers these methods, on
// the node of that ID (empty for a controller).
func NewRegistry(methods []string, node string, c clock.Clock) *Registry {
	return &Registry{methods: methods, node: node, clock: c,
		closed: make(chan struct{}), changed: make(chan struct{})}
}

// Close ends all waiting, without further effect. It is called once, when the
// process ends: a detached call would keep it from ending.
func (r *Registry) Close() { close(r.closed) }

// Inject adds a fault and gives its ID.
func (r *Registry) Inject(f Fault) (string, error) {
	if err := f.Validate(); err != nil {
		return "", err
	}
	if !slices.Contains(r.methods, f.Method) {
		return "", fmt.Errorf("method %q is none of %v", f.Method, r.methods)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	id := strconv.Itoa(r.next)
	r.faults = append(r.faults, &injected{Status: Status{ID: id, Fault: f}, release: make(chan struct{})})
	return id, nil
}

// Faults are all that were injected and not cleared, oldest first.
func (r *Registry) Faults() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]Status, 0, len(r.faults))
	for _, f := range r.faults {
		all = append(all, f.Status)
	}
	return all
}

// AwaitHits waits until a fault has happened to at least so many calls.
func (r *Registry) AwaitHits(ctx context.Context, id string, hits int) (Status, error) {
	for {
		r.mu.Lock()
		f, changed := r.find(id), r.changed
		var now Status
		if f != nil {
			now = f.Status
		}
		r.mu.Unlock()
		if f == nil {
			return Status{}, fmt.Errorf("fault %q: %w", id, ErrUnknown)
		}
		if now.Hits >= hits {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, fmt.Errorf("waiting for %d hits, %d so far: %w", hits, now.Hits, context.Cause(ctx))
		case <-changed:
		}
	}
}

// Release lets all calls go on that a fault delays or hangs, and hangs no more.
func (r *Registry) Release(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.find(id)
	if f == nil {
		return fmt.Errorf("fault %q: %w", id, ErrUnknown)
	}
	r.open(f)
	return nil
}

// Clear takes away that fault, or all of them, and lets their calls go on.
func (r *Registry) Clear(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id != "" && r.find(id) == nil {
		return fmt.Errorf("fault %q: %w", id, ErrUnknown)
	}
	r.faults = slices.DeleteFunc(r.faults, func(f *injected) bool {
		if id != "" && f.ID != id {
			return false
		}
		r.open(f)
		return true
	})
	r.tell()
	return nil
}

// find, open and tell want the mutex held.
func (r *Registry) find(id string) *injected {
	for _, f := range r.faults {
		if f.ID == id {
			return f
		}
	}
	return nil
}

func (r *Registry) open(f *injected) {
	if !f.Released {
		f.Released = true
		close(f.release)
	}
}

func (r *Registry) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Intercept is the server interceptor that makes the faults happen. A call gets
// the oldest fault that fits it and is not used up.
func (r *Registry) Intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	f := r.take(path.Base(info.FullMethod), request)
	if f == nil {
		return handle(ctx, request)
	}
	if f.Detach {
		ctx = context.WithoutCancel(ctx)
	}
	if f.Effect {
		response, err := handle(ctx, request)
		if waitErr := r.wait(ctx, f); waitErr != nil {
			return nil, waitErr
		}
		if err == nil && f.Code != codes.OK {
			return nil, failure(f.Fault)
		}
		return response, err
	}
	if err := r.wait(ctx, f); err != nil {
		return nil, err
	}
	if f.Code != codes.OK {
		return nil, failure(f.Fault)
	}
	return handle(ctx, request)
}

func failure(f Fault) error {
	if f.Message == "" {
		return status.Errorf(f.Code, "injected fault of %s", f.Method)
	}
	return status.Error(f.Code, f.Message)
}

func (r *Registry) take(method string, request any) *injected {
	subjects, node := subjectsOf(request), r.node
	if named, ok := request.(interface{ GetNodeId() string }); ok {
		node = named.GetNodeId()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.faults {
		usedUp := f.Times > 0 && f.Hits >= f.Times
		fits := f.Method == method && (f.Volume == "" || slices.Contains(subjects, f.Volume)) && (f.Node == "" || f.Node == node)
		if fits && !usedUp {
			f.Hits++
			r.tell()
			return f
		}
	}
	return nil
}

// subjectsOf are the IDs and names of the volume and the snapshot that a request
// is about.
func subjectsOf(request any) (subjects []string) {
	if named, ok := request.(interface{ GetVolumeId() string }); ok {
		subjects = append(subjects, named.GetVolumeId())
	}
	if named, ok := request.(interface{ GetSourceVolumeId() string }); ok {
		subjects = append(subjects, named.GetSourceVolumeId())
	}
	if named, ok := request.(interface{ GetSnapshotId() string }); ok {
		subjects = append(subjects, named.GetSnapshotId())
	}
	switch named := request.(type) {
	case *csi.CreateVolumeRequest:
		subjects = append(subjects, named.GetName(), state.VolumeID(named.GetName()))
	case *csi.CreateSnapshotRequest:
		subjects = append(subjects, named.GetName(), state.SnapshotID(named.GetName()))
	}
	return subjects
}

// wait spends the delay and the hang of a fault.
func (r *Registry) wait(ctx context.Context, f *injected) error {
	r.count(f, 1)
	defer r.count(f, -1)
	if f.Delay > 0 {
		timer := r.clock.NewTimer(time.Duration(f.Delay))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-r.closed:
			return errClosed
		case <-f.release:
		case <-timer.C():
		}
	}
	if !f.Hang {
		return nil
	}
	select {
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-r.closed:
		return errClosed
	case <-f.release:
		return nil
	}
}

func (r *Registry) count(f *injected, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f.Waiting += by
	r.tell()
}
