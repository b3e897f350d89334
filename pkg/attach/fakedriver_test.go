package attach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// callError is an error as the CSI client makes them.
type callError struct {
	code    codes.Code
	outcome volume.Outcome
	message string
}

func (e *callError) Error() string              { return e.message }
func (e *callError) Outcome() volume.Outcome    { return e.outcome }
func (e *callError) GRPCStatus() *status.Status { return status.New(e.code, e.message) }

var (
	errRefused = &callError{codes.InvalidArgument, volume.OutcomeFinal, "no such thing"}
	errAborted = &callError{codes.Aborted, volume.OutcomeRetry, "busy"}
	errTimeout = &callError{codes.DeadlineExceeded, volume.OutcomeUncertain, "deadline exceeded"}
)

// behaviour is how the driver answers a call.
type behaviour struct {
	err    error
	effect bool
	// takes is how long it takes; a call that is cancelled meanwhile ends as a
	// timeout, with effect if effect is set.
	takes time.Duration
}

var healthy = behaviour{effect: true}

// fakeDriver knows the truth: which volume is on which node ID. It notes every
// break of the rules by itself.
type fakeDriver struct {
	mu        sync.Mutex
	exclusive map[string]bool
	there     map[string]map[string]bool // handle, node ID
	inFlight  map[string]int             // handle, and handle/node
	calls     []string
	secrets   []map[string]string
	// migrated is what the metric of each call is to tell.
	migrated []bool
	requests []*csi.ControllerPublishVolumeRequest
	wrong    []string
	behave   func(method, handle, nodeID string) behaviour
	lists    int
	list     func(context.Context, map[volume.Handle][]string) (map[volume.Handle][]string, error)
}

func newFakeDriver(exclusive ...string) *fakeDriver {
	d := &fakeDriver{exclusive: map[string]bool{}, there: map[string]map[string]bool{}, inFlight: map[string]int{}}
	for _, h := range exclusive {
		d.exclusive[h] = true
	}
	return d
}

// set makes every call behave so.
func (d *fakeDriver) set(b behaviour) { d.setFunc(func(_, _, _ string) behaviour { return b }) }

func (d *fakeDriver) setFunc(f func(method, handle, nodeID string) behaviour) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behave = f
}

func (d *fakeDriver) ControllerPublish(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	d.mu.Lock()
	d.requests = append(d.requests, req)
	d.mu.Unlock()
	err := d.call(ctx, "publish", req.VolumeId, req.NodeId, req.Secrets)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/" + req.VolumeId}}, nil
}

func (d *fakeDriver) ControllerUnpublish(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if err := d.call(ctx, "unpublish", req.VolumeId, req.NodeId, req.Secrets); err != nil {
		return nil, err
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (d *fakeDriver) call(ctx context.Context, method, handle, nodeID string, secrets map[string]string) error {
	d.mu.Lock()
	b := healthy
	if d.behave != nil {
		b = d.behave(method, handle, nodeID)
	}
	op := handle
	if !d.exclusive[handle] {
		op += "/" + nodeID
	}
	d.calls = append(d.calls, method+" "+handle+" "+nodeID)
	d.secrets = append(d.secrets, secrets)
	d.migrated = append(d.migrated, volume.Migrated(ctx))
	d.inFlight[op]++
	if d.inFlight[op] > 1 {
		d.wrong = append(d.wrong, fmt.Sprintf("two calls in flight for %s", op))
	}
	d.mu.Unlock()

	cancelled := false
	if b.takes > 0 {
		select {
		case <-time.After(b.takes):
		case <-ctx.Done():
			cancelled = true
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inFlight[op]--
	if b.effect {
		d.apply(method, handle, nodeID)
	}
	if cancelled {
		return errTimeout
	}
	return b.err
}

func (d *fakeDriver) apply(method, handle, nodeID string) {
	nodes := d.there[handle]
	if nodes == nil {
		nodes = map[string]bool{}
		d.there[handle] = nodes
	}
	if method == "unpublish" {
		delete(nodes, nodeID)
		return
	}
	for other := range nodes {
		if other != nodeID && d.exclusive[handle] {
			d.wrong = append(d.wrong, fmt.Sprintf("W1: %s published to %s while on %s", handle, nodeID, other))
		}
	}
	nodes[nodeID] = true
}

func (d *fakeDriver) has(handle, nodeID string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.there[handle][nodeID]
}

// log is the calls so far, one a line.
func (d *fakeDriver) log() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.calls, "\n")
}

func (d *fakeDriver) count(method string) int { return strings.Count("\n"+d.log(), "\n"+method+" ") }

// check tells what rule was broken.
func (d *fakeDriver) check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.wrong) > 0 {
		return errors.New(strings.Join(d.wrong, "; "))
	}
	return nil
}

// Published tells the truth, unless list says otherwise.
func (d *fakeDriver) Published(ctx context.Context, _ []volume.Handle) (map[volume.Handle][]string, error) {
	d.mu.Lock()
	truth := map[volume.Handle][]string{}
	for handle, nodes := range d.there {
		truth[volume.Handle(handle)] = slices.Sorted(maps.Keys(nodes))
	}
	list := d.list
	d.lists++
	d.mu.Unlock()
	if list == nil {
		return truth, nil
	}
	return list(ctx, truth)
}

// setList changes what Published answers, given the truth at its beginning.
func (d *fakeDriver) setList(f func(context.Context, map[volume.Handle][]string) (map[volume.Handle][]string, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = f
}

// alter makes the truth another one, behind everybody's back.
func (d *fakeDriver) alter(method, handle, nodeID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.apply(method, handle, nodeID)
}

func (d *fakeDriver) listed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lists
}
