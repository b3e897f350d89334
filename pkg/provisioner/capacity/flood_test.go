package capacity

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// base1161, topolvm/issues/1201, T20 and T21: hundreds of places and classes with a
// GetCapacity of 100 ms that fails every other time, polled each second, by a
// driver that cannot keep up with one call at a time. The queue is never longer
// than the items are many, one item has one worker at a time (the driver of the
// test sees to that), and there is one object for an item.
func TestADriverThatCannotKeepUpMakesNoQueueGrow(t *testing.T) {
	for threads, segments := range map[int]int{1: 150, 8: 100} {
		t.Run(fmt.Sprint(threads, " threads"), func(t *testing.T) {
			bubble(t, func(r *rig) {
				const storageClasses = 5
				items := segments * storageClasses
				r.tune = func(cfg *Config) {
					cfg.Threads, cfg.PollInterval, cfg.RetryIntervalMax = threads, time.Second, time.Minute
				}
				var zones []string
				for i := range segments {
					zones = append(zones, fmt.Sprintf("zone=%d", i))
				}
				r.places.set(nil, zones...)
				for i := range storageClasses {
					r.class(fmt.Sprintf("c%d", i), nil)
				}
				r.driver.answer = func(_ context.Context, _, _ string, n int) (*csi.GetCapacityResponse, error) {
					time.Sleep(100 * time.Millisecond)
					if n%2 == 1 {
						return nil, errDriver
					}
					return &csi.GetCapacityResponse{AvailableCapacity: 1000}, nil
				}
				r.start()
				queue := r.c.backlog.queue
				longest := 0
				look := func(seconds int) {
					for range seconds {
						r.pass(time.Second)
						longest = max(longest, queue.Len())
						if n := r.c.backlog.failing(); n > items {
							t.Fatalf("%d items in backoff", n)
						}
					}
				}
				look(600 * segments / 500)
				r.places.set(nil, zones...) // as a resync would
				for i := range storageClasses {
					r.c.Refresh(fmt.Sprintf("c%d", i), nil)
				}
				look(600 * segments / 500)
				t.Logf("%d items, the queue was %d long at most, %d calls, %d at once", items, longest, r.driver.calledAtAll(), r.driver.most)
				if longest > items {
					t.Errorf("the queue was %d long, of %d items", longest, items)
				}
				if longest < items/2 {
					t.Errorf("the queue was %d long at most: the driver kept up", longest)
				}
				if r.driver.most > threads {
					t.Errorf("%d calls at once", r.driver.most)
				}
				seen := map[item]int{}
				for _, obj := range r.api.objects() {
					seen[itemOf(&obj)]++
				}
				if len(seen) != items {
					t.Errorf("%d items have an object", len(seen))
				}
				for it, n := range seen {
					if n != 1 {
						t.Errorf("%v has %d objects", it, n)
					}
				}
				if n := r.api.count("create"); n != items {
					t.Errorf("%d creates", n)
				}
			})
		})
	}
}
