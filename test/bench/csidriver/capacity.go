package csidriver

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ClassParameter is the parameter of a StorageClass that tells the driver which
// class it is asked about.
const ClassParameter = "class"

// available is what each place has room for, for ever: nobody has to write twice.
const available = 1 << 40

// Capacity is how a driver answers GetCapacity.
type Capacity struct {
	// Key is that of the topology; each of its values is a place.
	Key string
	// Latency is how long each call takes.
	Latency time.Duration
	// Failing is the part of the calls that fail, from 0 to 1; which do is left to
	// chance.
	Failing float64
}

func (c *Capacity) check() error {
	if c != nil && (c.Key == "" || c.Latency < 0 || c.Failing < 0 || c.Failing > 1) {
		return errors.New("a driver that tells its capacity needs a key of the topology, a latency of 0 or more, and a failing part from 0 to 1")
	}
	return nil
}

// Item is what GetCapacity is asked about.
type Item struct {
	Segment string `json:"segment"`
	Class   string `json:"class"`
}

// capacities is what GetCapacity has done; the driver's lock guards it.
type capacities struct {
	asked  int
	told   map[Item]int // answered without an error
	silent bool
}

// ForgetCapacity begins to count anew, and answers again after SilenceCapacity.
func (d *Driver) ForgetCapacity() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacities = capacities{told: map[Item]int{}}
}

// SilenceCapacity lets all calls fail from now on, those under way among them.
func (d *Driver) SilenceCapacity() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.silent = true
}

// CapacityCalls gives the calls since ForgetCapacity: how many have arrived, and
// how many of each item were answered without an error.
func (d *Driver) CapacityCalls() (asked int, told map[Item]int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked, maps.Clone(d.told)
}

func (c controller) GetCapacity(ctx context.Context, request *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	d, cfg := c.driver, c.driver.cfg.Capacity
	if cfg == nil {
		return nil, status.Error(codes.Unimplemented, "this driver does not tell its capacity")
	}
	it := Item{Segment: request.GetAccessibleTopology().GetSegments()[cfg.Key], Class: request.GetParameters()[ClassParameter]}
	if it.Segment == "" || it.Class == "" {
		return nil, status.Errorf(codes.InvalidArgument, "topology key %s or parameter %s is missing", cfg.Key, ClassParameter)
	}
	d.mu.Lock()
	d.asked++
	d.mu.Unlock()
	if err := work(ctx, cfg.Latency); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.silent || rand.Float64() < cfg.Failing {
		return nil, status.Error(codes.Unavailable, "the backend does not answer")
	}
	d.told[it]++
	return &csi.GetCapacityResponse{AvailableCapacity: available}, nil
}
