package csiprovisioner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/csiclient"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/journal"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/source"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// callError is an error of the driver as pkg/csiclient makes it of a code.
type callError struct {
	code    codes.Code
	outcome volume.Outcome
}

func answered(code codes.Code) error {
	outcome, _ := csiclient.Classify(csiclient.Create, code)
	return callError{code, outcome}
}

// unsent never left this process.
func unsent() error { return callError{codes.Unavailable, volume.OutcomeRetry} }

func (e callError) Error() string              { return "the driver says " + e.code.String() }
func (e callError) Outcome() volume.Outcome    { return e.outcome }
func (e callError) GRPCStatus() *status.Status { return status.New(e.code, "") }

// fakeDriver has volumes by name, as CSI wants: the same request finds its volume.
// A script may answer in its place.
type fakeDriver struct {
	mu      sync.Mutex
	create  func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error)
	remove  func(*csi.DeleteVolumeRequest) error
	volumes map[string]*csi.Volume
	created []*csi.CreateVolumeRequest
	deleted []*csi.DeleteVolumeRequest
	// migrated is what the metric of each call is to tell.
	migrated []bool
}

func (d *fakeDriver) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.migrated = append(d.migrated, volume.Migrated(ctx))
	d.created = append(d.created, proto.Clone(req).(*csi.CreateVolumeRequest))
	if d.create != nil {
		return d.create(req)
	}
	return d.make(req), nil
}

// make makes the volume of a request, or finds it.
func (d *fakeDriver) make(req *csi.CreateVolumeRequest) *csi.CreateVolumeResponse {
	if d.volumes[req.Name] == nil {
		if d.volumes == nil {
			d.volumes = map[string]*csi.Volume{}
		}
		d.volumes[req.Name] = &csi.Volume{
			VolumeId: "id-of-" + req.Name, CapacityBytes: req.GetCapacityRange().GetRequiredBytes(), ContentSource: req.GetVolumeContentSource(),
		}
	}
	return &csi.CreateVolumeResponse{Volume: d.volumes[req.Name]}
}

func (d *fakeDriver) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.migrated = append(d.migrated, volume.Migrated(ctx))
	d.deleted = append(d.deleted, proto.Clone(req).(*csi.DeleteVolumeRequest))
	if d.remove != nil {
		if err := d.remove(req); err != nil {
			return nil, err
		}
	}
	maps.DeleteFunc(d.volumes, func(_ string, v *csi.Volume) bool { return v.VolumeId == req.VolumeId })
	return &csi.DeleteVolumeResponse{}, nil
}

// calls are how often the driver was called.
func (d *fakeDriver) calls() (created, deleted int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.created), len(d.deleted)
}

// wantMigrated compares what the metrics of all calls would tell.
func (d *fakeDriver) wantMigrated(t *testing.T, want ...bool) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !slices.Equal(d.migrated, want) {
		t.Errorf("the calls are of migrated volumes: %v, want %v", d.migrated, want)
	}
}

func (d *fakeDriver) left() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.volumes))
}

// fakeJournal keeps records in memory. It outlives the Provisioners that use it.
type fakeJournal struct {
	mu      sync.Mutex
	records map[string]string
	// ever are all records that were put, in their order.
	ever []string
	// put is called before a record is acknowledged, without the lock.
	put func(key, value string) error
	// unread is what Open cannot read.
	unread []journal.Unread
	// opens fails Open so many times.
	opens int
}

func newFakeJournal() *fakeJournal { return &fakeJournal{records: map[string]string{}} }

func (j *fakeJournal) Page(key string) *v1.ObjectReference {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, there := j.records[key]; !there {
		return nil
	}
	return &v1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "csi", Name: "journal-0", UID: "page-uid"}
}

func (j *fakeJournal) Unread() []journal.Unread { return j.unread }

func (j *fakeJournal) Open(context.Context) (map[string]string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.opens > 0 {
		j.opens--
		return nil, errors.New("the API server is away")
	}
	return maps.Clone(j.records), nil
}

func (j *fakeJournal) Put(_ context.Context, key, value string) error {
	j.mu.Lock()
	hook := j.put
	j.mu.Unlock()
	if hook != nil {
		if err := hook(key, value); err != nil {
			return err
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records[key] = value
	j.ever = append(j.ever, value)
	return nil
}

func (j *fakeJournal) Remove(key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.records, key)
}

func (j *fakeJournal) keys() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Sorted(maps.Keys(j.records))
}

// fakeTopology answers always the same.
type fakeTopology struct {
	answer *csi.TopologyRequirement
	err    error
	asked  []string
}

func (f *fakeTopology) Requirements(claim string, allowed []v1.TopologySelectorTerm, node string) (*csi.TopologyRequirement, error) {
	f.asked = append(f.asked, fmt.Sprintf("%s, %d terms, node %s", claim, len(allowed), node))
	return proto.Clone(f.answer).(*csi.TopologyRequirement), f.err
}

// fakeSources answers always the same.
type fakeSources struct {
	answer *source.Source
	err    error
	asked  []string
}

func (f *fakeSources) Resolve(_ context.Context, _ *v1.PersistentVolumeClaim, driver string) (*source.Source, error) {
	f.asked = append(f.asked, driver)
	return f.answer, f.err
}

// fakeProtection notes who holds what, and complains of a release too many.
type fakeProtection struct {
	mu       sync.Mutex
	err      error
	held     map[string]int
	released map[string]int
}

func newFakeProtection() *fakeProtection {
	return &fakeProtection{held: map[string]int{}, released: map[string]int{}}
}

func (f *fakeProtection) Protect(_ context.Context, ref source.Ref, user types.UID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var unprotected *source.Unprotected
	if f.err != nil && !errors.As(f.err, &unprotected) {
		return f.err
	}
	f.held[ref.String()+" for "+string(user)]++
	return f.err
}

func (f *fakeProtection) Release(ref source.Ref, user types.UID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released[ref.String()+" for "+string(user)]++
}

// counts are how often all sources were protected and released.
func (f *fakeProtection) counts() (held, released int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.held {
		held += n
	}
	for _, n := range f.released {
		released += n
	}
	return held, released
}
