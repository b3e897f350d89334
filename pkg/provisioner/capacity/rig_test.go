package capacity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/metrics"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

const (
	driverName = "sim.example.com"
	namespace  = "storage"
)

func at(labels string) topology.Segment {
	m := map[string]string{}
	for p := range strings.SplitSeq(labels, ",") {
		k, v, _ := strings.Cut(p, "=")
		m[k] = v
	}
	return topology.SegmentOf(m)
}

// places is where the driver is.
type places struct {
	mu       sync.Mutex
	segments []topology.Segment
	err      error
	notify   map[int]func()
	next     int
}

func (p *places) Segments() ([]topology.Segment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.segments), p.err
}

func (p *places) HasSynced() bool { return true }

func (p *places) Subscribe(changed func()) (func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := p.next
	p.next++
	if p.notify == nil {
		p.notify = map[int]func(){}
	}
	p.notify[id] = changed
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.notify, id)
	}, nil
}

func (p *places) set(err error, labels ...string) {
	p.mu.Lock()
	p.segments, p.err = nil, err
	for _, l := range labels {
		p.segments = append(p.segments, at(l))
	}
	notify := slices.Collect(maps.Values(p.notify))
	p.mu.Unlock()
	for _, f := range notify {
		f()
	}
}

// fakeDriver answers GetCapacity.
type fakeDriver struct {
	t  *testing.T
	mu sync.Mutex
	// room is the answer for "segment" or for "segment class".
	room    map[string]int64
	largest map[string]int64
	// answer replaces all that, where it is set.
	answer func(ctx context.Context, segment, class string, n int) (*csi.GetCapacityResponse, error)

	calls    map[string]int
	times    map[string][]time.Time
	inFlight map[string]bool
	most     int
	last     *csi.GetCapacityRequest
}

func (d *fakeDriver) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	segment := topology.SegmentOf(req.GetAccessibleTopology().GetSegments()).String()
	class := req.GetParameters()["name"]
	key := strings.TrimSpace(segment + " " + class)
	d.mu.Lock()
	if d.inFlight[key] {
		d.t.Errorf("two calls at once for %s", key)
	}
	d.inFlight[key] = true
	d.most = max(d.most, len(d.inFlight))
	d.calls[key]++
	d.times[key] = append(d.times[key], time.Now())
	d.last = req
	n, answer := d.calls[key], d.answer
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.inFlight, key)
	}()
	if answer != nil {
		return answer(ctx, segment, class, n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	bytes, ok := d.room[key]
	if !ok {
		bytes = d.room[segment]
	}
	resp := &csi.GetCapacityResponse{AvailableCapacity: bytes}
	if size, ok := d.largest[segment]; ok {
		resp.MaximumVolumeSize = wrapperspb.Int64(size)
	}
	return resp, nil
}

func (d *fakeDriver) set(f func(*fakeDriver)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

func (d *fakeDriver) called(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[key]
}

func (d *fakeDriver) calledAtAll() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, c := range d.calls {
		n += c
	}
	return n
}

// rig runs controllers against a fake API in a bubble of time.
type rig struct {
	t        *testing.T
	api      *fakeAPI
	driver   *fakeDriver
	places   *places
	registry metrics.KubeRegistry
	tune     func(*Config)

	mu      sync.Mutex
	reports []string

	c    *Controller
	stop func()
}

// bubble runs a test with a rig.
func bubble(t *testing.T, f func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			t: t, api: newFakeAPI(), places: &places{}, registry: metrics.NewKubeRegistry(), tune: func(*Config) {},
			driver: &fakeDriver{t: t, room: map[string]int64{}, largest: map[string]int64{}, calls: map[string]int{}, times: map[string][]time.Time{}, inFlight: map[string]bool{}},
			stop:   func() {},
		}
		defer func() { r.stop() }()
		f(r)
	})
}

func (r *rig) class(name string, change func(*storagev1.StorageClass)) {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("class-" + name)}, Provisioner: driverName,
		VolumeBindingMode: &late, Parameters: map[string]string{"name": name},
	}
	if change != nil {
		change(class)
	}
	if r.api.Tracker().Create(classes, class, "") != nil {
		must(r.api.Tracker().Update(classes, class, ""))
	}
}

func (r *rig) noClass(name string) { must(r.api.Tracker().Delete(classes, "", name)) }

// config is what start makes a controller of.
func (r *rig) config() (Config, informers.SharedInformerFactory) {
	factory := informers.NewSharedInformerFactory(r.api, 0)
	cfg := Config{
		DriverName: driverName, ManagedBy: ManagedByCentral, Namespace: namespace, Driver: r.driver, Segments: r.places,
		Client: r.api, Classes: factory.Storage().V1().StorageClasses(), Registry: r.registry,
		Report: func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reports = append(r.reports, fmt.Sprint(err))
		},
	}
	r.tune(&cfg)
	return cfg, factory
}

func (r *rig) reported() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reports)
}

// start runs a controller and lets all that needs no time happen.
func (r *rig) start() {
	r.t.Helper()
	cfg, factory := r.config()
	c, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	r.c = c
	r.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
		factory.Shutdown()
		r.stop = func() {}
	}
	r.pass(time.Second)
}

// restart is another process.
func (r *rig) restart() {
	r.stop()
	r.registry = metrics.NewKubeRegistry()
	r.mu.Lock()
	r.reports = nil // of the process that has ended
	r.mu.Unlock()
	r.start()
}

// pass lets time go by.
func (r *rig) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) expect(want ...string) {
	r.t.Helper()
	slices.Sort(want)
	if got := r.api.told(); !slices.Equal(got, want) {
		r.t.Errorf("the objects say\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// metric reads a number, with its labels as "name{label=value}".
func (r *rig) metric(name string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			id := f.GetName()
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			if len(labels) > 0 {
				id += "{" + strings.Join(labels, ",") + "}"
			}
			if id == name {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func (r *rig) expectMetric(name string, want float64) {
	r.t.Helper()
	if got := r.metric(name); got != want {
		r.t.Errorf("%s is %v, want %v", name, got, want)
	}
}

var errDriver = errors.New("the array is on fire")
