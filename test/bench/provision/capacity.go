package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
	"github.com/ha-sidecar/ha-sidecar/test/bench/csidriver"
	"github.com/ha-sidecar/ha-sidecar/test/bench/usage"
	"github.com/ha-sidecar/ha-sidecar/test/bench/world"
)

// Capacity is what the programs make of a driver that tells its capacity, and
// fails to half of the time.
type Capacity struct {
	// Items are pairs of a segment and a class: there can be an object of each.
	Segments int            `json:"segments"`
	Classes  int            `json:"classes"`
	Items    int            `json:"items"`
	Runs     []*CapacityRun `json:"runs"`
}

// CapacityRun is one run of one side.
type CapacityRun struct {
	Side    string `json:"side"`
	Threads int    `json:"threads"`
	// Begun is before the side was started, Ended once it was looked at for long
	// enough. All figures but those of the objects are of the time between.
	Begun time.Time `json:"begun"`
	Ended time.Time `json:"ended"`
	// Depth is that of the side's workqueue.
	Depth Depth `json:"depth"`
	// Calls of GetCapacity.
	Calls int `json:"getCapacityCalls"`
	// Objects are counted once the driver answers nobody and the side has written
	// what it knew.
	Objects  Objects        `json:"objects"`
	Requests audit.Requests `json:"requests"`
	CPU      float64        `json:"cpuSeconds"`
	Memory   usage.Memory   `json:"memory"`

	side side
}

// Depth is how many items were in a workqueue and due, sampled.
type Depth struct {
	Samples int `json:"samples"`
	Most    int `json:"most"`
	Last    int `json:"last"`
}

func (d *Depth) add(n int) { d.Samples, d.Most, d.Last = d.Samples+1, max(d.Most, n), n }

// Objects are the CSIStorageCapacity objects beside the items that the driver ever
// answered.
type Objects struct {
	Total int `json:"total"`
	// Told are the items that the driver has answered at least once, Missing those
	// of them that have no object.
	Told    int `json:"itemsTold"`
	Missing int `json:"missing"`
	// Duplicates are objects beyond the first of an item, Strange those of an item
	// that the driver never answered.
	Duplicates int `json:"duplicates"`
	Strange    int `json:"strange"`
}

// compareObjects compares what there is with what the driver has told.
func compareObjects(all []storagev1.CSIStorageCapacity, told map[csidriver.Item]int) Objects {
	o := Objects{Total: len(all), Told: len(told)}
	seen := map[csidriver.Item]bool{}
	for i := range all {
		it := csidriver.Item{Class: all[i].StorageClassName}
		if all[i].NodeTopology != nil {
			it.Segment = all[i].NodeTopology.MatchLabels[segmentKey]
		}
		switch {
		case told[it] == 0:
			o.Strange++
		case seen[it]:
			o.Duplicates++
		}
		seen[it] = true
	}
	for it := range told {
		if !seen[it] {
			o.Missing++
		}
	}
	return o
}

const (
	capacityLatency = 100 * time.Millisecond
	capacityFailing = 0.5
	// sampled is how often the workqueue is looked at.
	sampled = time.Second
)

// threads are the settings of --capacity-threads: the default of both, and more.
var threads = []int{1, 10}

// telling measures the two programs, one at a time, with each number of threads.
func telling(s setting, o options) plan {
	p := plan{
		name: s.name, clusterArgs: s.clusterArgs(),
		title:    fmt.Sprintf("%s; %d segments, %d classes, %v each, GetCapacity of %v, failing half of the time", s.title, o.segments, classes, o.capacity, capacityLatency),
		capacity: &csidriver.Capacity{Key: segmentKey, Latency: capacityLatency, Failing: capacityFailing},
	}
	p.measure = func(ctx context.Context, w *stage, phase *Phase) error {
		if err := w.spread(ctx, o.segments); err != nil {
			return err
		}
		phase.Capacity = &Capacity{Segments: o.segments, Classes: classes, Items: o.segments * classes}
		for _, n := range threads {
			for _, side := range o.who {
				if side.key == floor.key {
					continue
				}
				r, err := w.tell(ctx, side, append(slices.Clone(s.flagsOf(side)), fmt.Sprintf("--capacity-threads=%d", n)), o.capacity)
				if err != nil {
					return fmt.Errorf("%s with %d threads: %w", side.title, n, err)
				}
				r.Threads = n
				phase.Capacity.Runs = append(phase.Capacity.Runs, r)
				progress(os.Stdout, 0, side, fmt.Sprintf("%2d threads: %d objects, %d duplicates, %d GetCapacity calls, %d items in the queue at most",
					n, r.Objects.Total, r.Objects.Duplicates, r.Calls, r.Depth.Most))
			}
		}
		return nil
	}
	return p
}

// tell starts a side, looks at it for a time, and stops it. Its objects go, too.
func (w *stage) tell(ctx context.Context, s side, flags []string, lasting time.Duration) (*CapacityRun, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lasting+runBound, fmt.Errorf("a run of %s took longer than %v", s.title, lasting+runBound))
	defer cancel()
	w.driver.ForgetCapacity()
	r := &CapacityRun{Side: s.title, side: s, Begun: time.Now()}
	p, err := w.startProgram(ctx, s, flags)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.measure(ctx, w, p, lasting), p.stop()); err != nil {
		return nil, err
	}
	return r, w.admin.StorageV1().CSIStorageCapacities(leaseNamespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

func (r *CapacityRun) measure(ctx context.Context, w *stage, p *program, lasting time.Duration) (err error) {
	// Every second, counted from the start, so that a slow answer delays no other.
	for at := r.Begun.Add(sampled); !at.After(r.Begun.Add(lasting)); at = at.Add(sampled) {
		if err := world.Pause(ctx, time.Until(at)); err != nil {
			return err
		}
		depth, err := p.depth(ctx)
		if err != nil {
			return err
		}
		r.Depth.add(depth)
	}
	r.CPU = usage.ReadCPU()[r.side.name]
	if r.Memory, err = p.memory(); err != nil {
		return err
	}
	r.Ended = time.Now()
	r.Calls, _ = w.driver.CapacityCalls()
	w.driver.SilenceCapacity()
	if err := w.rest(ctx, r.side); err != nil {
		return err
	}
	list, err := w.admin.StorageV1().CSIStorageCapacities(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	_, told := w.driver.CapacityCalls()
	r.Objects = compareObjects(list.Items, told)
	return nil
}

// queueName is the workqueue's of both programs.
const queueName = "csistoragecapacity"

// depth asks a program for that of its workqueue.
func (p *program) depth(ctx context.Context) (int, error) {
	var answer bytes.Buffer
	if err := get(ctx, p.url+"/metrics", &answer); err != nil {
		return 0, errors.Join(fmt.Errorf("asking for the metrics: %w", err), p.Err())
	}
	return depthOf(answer.Bytes())
}

// depthOf finds it in metrics as Prometheus writes them.
func depthOf(metrics []byte) (int, error) {
	for line := range bytes.Lines(metrics) {
		value, found := bytes.CutPrefix(line, []byte(`workqueue_depth{name="`+queueName+`"} `))
		if !found {
			continue
		}
		depth, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
		if err != nil {
			return 0, fmt.Errorf("reading the depth of workqueue %s: %w", queueName, err)
		}
		return int(depth), nil
	}
	return 0, fmt.Errorf("the metrics tell no depth of workqueue %s", queueName)
}

// count takes the runs' requests out of the audit log.
func (c *Capacity) count(requests []audit.Request) {
	for _, r := range c.Runs {
		r.Requests = audit.Count(requests, r.side.agent(), r.Begun, r.Ended)
	}
}
