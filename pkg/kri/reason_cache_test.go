package kri

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

func failed(action container.SyncAction, target any, err error, message string) *container.SyncResult {
	r := container.NewSyncResult(action, target)
	r.Fail(err, message)
	return r
}

func update(c *ReasonCache, uid types.UID, results ...*container.SyncResult) {
	c.Update(uid, container.PodSyncResult{SyncResults: results})
}

func assertReason(t *testing.T, c *ReasonCache, uid types.UID, name string, err error, message string) {
	t.Helper()
	item, ok := c.Get(uid, name)
	if !ok {
		t.Fatalf("no reason for %s/%s", uid, name)
	}
	if !errors.Is(item.Err, err) || item.Message != message {
		t.Errorf("reason of %s/%s is %v %q, want %v %q", uid, name, item.Err, item.Message, err, message)
	}
}

func assertNone(t *testing.T, c *ReasonCache, uid types.UID, name string) {
	t.Helper()
	if item, ok := c.Get(uid, name); ok {
		t.Errorf("%s/%s has reason %v %q, want none", uid, name, item.Err, item.Message)
	}
}

func TestReasonCache(t *testing.T) {
	c := NewReasonCache()
	update(c, "pod",
		failed(container.StartContainer, "c1", container.ErrRunContainer, "message_1"),
		container.NewSyncResult(container.StartContainer, "c2"),
		failed(container.KillContainer, "c3", errors.New("KillContainer"), "message_3"),
	)
	assertReason(t, c, "pod", "c1", container.ErrRunContainer, "message_1")
	assertNone(t, c, "pod", "c2")
	assertNone(t, c, "pod", "c3")
	c.Remove("pod", "c1")
	assertNone(t, c, "pod", "c1")
	c.Remove("pod", "c1") // Nothing there: no harm.
}

func TestReasonCacheCountsOnlyNamedStarts(t *testing.T) {
	c := NewReasonCache()
	err := errors.New("E")
	update(c, "pod",
		failed(container.InitContainer, "c", err, ""),
		failed(container.MountVolumes, "c", err, ""),
		failed(container.StartContainer, types.UID("c"), err, ""), // not a string
		failed(container.StartContainer, nil, err, ""),
		nil,
	)
	assertNone(t, c, "pod", "c")
}

func TestReasonCacheSuccessForgets(t *testing.T) {
	c := NewReasonCache()
	update(c, "pod", failed(container.StartContainer, "c", container.ErrRunContainer, "first"))
	update(c, "pod", failed(container.StartContainer, "c", container.ErrCrashLoopBackOff, "second"))
	assertReason(t, c, "pod", "c", container.ErrCrashLoopBackOff, "second")
	update(c, "pod", container.NewSyncResult(container.StartContainer, "c"))
	assertNone(t, c, "pod", "c")
}

func TestReasonCacheSeparatesPods(t *testing.T) {
	c := NewReasonCache()
	update(c, "a", failed(container.StartContainer, "c", container.ErrRunContainer, "of a"))
	update(c, "b", failed(container.StartContainer, "c", container.ErrFailedMount, "of b"))
	assertReason(t, c, "a", "c", container.ErrRunContainer, "of a")
	assertReason(t, c, "b", "c", container.ErrFailedMount, "of b")
	c.Remove("a", "c")
	assertNone(t, c, "a", "c")
	assertReason(t, c, "b", "c", container.ErrFailedMount, "of b")
	// A key made by joining would take these for the same container.
	update(c, "x_y", failed(container.StartContainer, "z", container.ErrRunContainer, ""))
	assertNone(t, c, "x", "y_z")
}

func TestReasonCacheReturnsCopies(t *testing.T) {
	c := NewReasonCache()
	update(c, "pod", failed(container.StartContainer, "c", container.ErrRunContainer, "m"))
	item, _ := c.Get("pod", "c")
	item.Err, item.Message = nil, "changed"
	assertReason(t, c, "pod", "c", container.ErrRunContainer, "m")
}

func TestReasonCacheEvictsTheOldest(t *testing.T) {
	fill := func(c *ReasonCache, from, to int) {
		for i := from; i < to; i++ {
			update(c, "pod", failed(container.StartContainer, fmt.Sprint("c", i), container.ErrRunContainer, ""))
		}
	}
	c := NewReasonCache()
	fill(c, 0, maxReasonEntries)
	assertReason(t, c, "pod", "c0", container.ErrRunContainer, "") // And c0 is now the newest.
	fill(c, maxReasonEntries, maxReasonEntries+1)
	assertNone(t, c, "pod", "c1")
	assertReason(t, c, "pod", "c0", container.ErrRunContainer, "")
	assertReason(t, c, "pod", fmt.Sprint("c", maxReasonEntries), container.ErrRunContainer, "")
	if c.order.Len() != maxReasonEntries || len(c.entries) != maxReasonEntries {
		t.Errorf("%d in order, %d in the map, want %d", c.order.Len(), len(c.entries), maxReasonEntries)
	}
}

// TestReasonCacheAgainstModel compares with a plain map, which a cache that is
// not full has to equal.
func TestReasonCacheAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, model := NewReasonCache(), map[reasonKey]string{}
		key := rapid.Custom(func(t *rapid.T) reasonKey {
			return reasonKey{types.UID(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "uid")), rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "name")}
		})
		t.Repeat(map[string]func(*rapid.T){
			"fail": func(t *rapid.T) {
				k, m := key.Draw(t, "key"), rapid.String().Draw(t, "message")
				update(c, k.uid, failed(container.StartContainer, k.name, container.ErrRunContainer, m))
				model[k] = m
			},
			"succeed": func(t *rapid.T) {
				k := key.Draw(t, "key")
				update(c, k.uid, container.NewSyncResult(container.StartContainer, k.name))
				delete(model, k)
			},
			"": func(t *rapid.T) {
				k := key.Draw(t, "key")
				item, ok := c.Get(k.uid, k.name)
				want, wanted := model[k]
				if ok != wanted || ok && item.Message != want {
					t.Fatalf("%v: got %v %v, want %v %q", k, item, ok, wanted, want)
				}
			},
		})
	})
}

func TestReasonCacheConcurrently(t *testing.T) {
	c := NewReasonCache()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 500 {
				name := fmt.Sprint("c", i*500+j)
				update(c, "pod", failed(container.StartContainer, name, container.ErrRunContainer, ""))
				c.Get("pod", name)
				c.Remove("pod", name)
			}
		})
	}
	wg.Wait()
	if c.order.Len() != 0 {
		t.Errorf("%d entries left", c.order.Len())
	}
}
