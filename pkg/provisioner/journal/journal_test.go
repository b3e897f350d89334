package journal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"pgregory.net/rapid"
)

const name = "ha-sidecar-journal-sim"

func config(a *api) Config { return Config{Client: a, Namespace: "csi", Name: name} }

// open makes a journal, opens it and runs it; the result ends it and returns
// what Run did.
func open(t testing.TB, cfg Config) (*Journal, map[string]string, func() error) {
	t.Helper()
	j, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	records, err := j.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	return j, records, func() error {
		cancel()
		return <-done
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecordIsDurableWhenPutReturns(t *testing.T) {
	a := newAPI()
	j, _, stop := open(t, config(a))
	must(t, j.Put(t.Context(), "uid-1", "one"))
	if diff := cmp.Diff(map[string]string{"uid-1": "one"}, a.data()); diff != "" {
		t.Errorf("in the cluster (-want +got):\n%s", diff)
	}
	must(t, stop())
	_, records, stop := open(t, config(a))
	if diff := cmp.Diff(map[string]string{"uid-1": "one"}, records); diff != "" {
		t.Errorf("the next holder finds (-want +got):\n%s", diff)
	}
	must(t, stop())
}

func TestRecordsThatGatherGoIntoOneWrite(t *testing.T) {
	a := newAPI()
	j, _, stop := open(t, config(a))
	before := a.written()
	begun, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	a.before = func(*v1.ConfigMap) error {
		once.Do(func() { close(begun); <-goOn })
		return nil
	}
	var puts sync.WaitGroup
	puts.Go(func() { must(t, j.Put(t.Context(), "first", "x")) })
	<-begun
	for i := range 100 {
		puts.Go(func() { must(t, j.Put(t.Context(), fmt.Sprintf("uid-%d", i), "x")) })
	}
	for {
		j.mu.Lock()
		n := len(j.puts)
		j.mu.Unlock()
		if n == 100 {
			break
		}
	}
	close(goOn)
	puts.Wait()
	if n := a.written() - before; n != 2 {
		t.Errorf("101 records took %d writes, want 2", n)
	}
	if n := len(a.data()); n != 101 {
		t.Errorf("%d records in the cluster, want 101", n)
	}
	must(t, stop())
}

func TestRemovalGoesWithTheNextWriteOrWithinItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		j, _, stop := open(t, config(a))
		must(t, j.Put(t.Context(), "a", "1"))
		j.Remove("a")
		synctest.Wait()
		if _, there := a.data()["a"]; !there {
			t.Error("a removal was written on its own at once")
		}
		must(t, j.Put(t.Context(), "b", "2"))
		if diff := cmp.Diff(map[string]string{"b": "2"}, a.data()); diff != "" {
			t.Errorf("after the next write (-want +got):\n%s", diff)
		}
		j.Remove("b")
		time.Sleep(DefaultRemoveWithin)
		synctest.Wait()
		if len(a.data()) != 0 {
			t.Errorf("still there after %v: %v", DefaultRemoveWithin, a.data())
		}
		must(t, stop())
	})
}

func TestStopWritesWhatIsLeft(t *testing.T) {
	a := newAPI()
	j, _, stop := open(t, config(a))
	must(t, j.Put(t.Context(), "a", "1"))
	j.Remove("a")
	must(t, stop())
	if len(a.data()) != 0 {
		t.Errorf("a removal was lost: %v", a.data())
	}
	if err := j.Put(t.Context(), "b", "2"); err == nil {
		t.Error("a closed journal takes a record")
	}
}

func TestPagesAreBounded(t *testing.T) {
	a := newAPI()
	cfg := config(a)
	cfg.PageBytes = 100
	j, _, stop := open(t, cfg)
	for i := range 10 {
		must(t, j.Put(t.Context(), fmt.Sprintf("k%d", i), strings.Repeat("x", 40)))
	}
	if n := len(a.maps); n != 5 {
		t.Errorf("%d pages, want 5", n)
	}
	if err := j.Put(t.Context(), "big", strings.Repeat("x", 100)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("Put() of a large record = %v, want ErrTooLarge", err)
	}
	// Room is used again.
	j.Remove("k0")
	must(t, j.Put(t.Context(), "k10", strings.Repeat("x", 40)))
	if _, there := a.maps[name+"-0"].Data["k10"]; !there {
		t.Errorf("a new record did not take the room of an old one")
	}
	must(t, stop())
	_, records, stop := open(t, cfg)
	if len(records) != 10 {
		t.Errorf("%d records found, want 10", len(records))
	}
	must(t, stop())
}

func TestBadKeyIsRefused(t *testing.T) {
	j, _, stop := open(t, config(newAPI()))
	if err := j.Put(t.Context(), "no key", "x"); err == nil {
		t.Error("a key that no ConfigMap can have was taken")
	}
	must(t, stop())
}

// A write of the earlier holder that is late conflicts, and ends it.
func TestEarlierHolderCannotWriteAfterATakeover(t *testing.T) {
	a := newAPI()
	old, _, stopOld := open(t, config(a))
	must(t, old.Put(t.Context(), "a", "1"))
	_, records, stop := open(t, config(a))
	if records["a"] != "1" {
		t.Errorf("the new holder finds %v", records)
	}
	if err := old.Put(t.Context(), "b", "2"); !errors.Is(err, ErrTakenOver) {
		t.Errorf("Put() of the earlier holder = %v, want ErrTakenOver", err)
	}
	if err := stopOld(); !errors.Is(err, ErrTakenOver) {
		t.Errorf("Run() of the earlier holder = %v, want ErrTakenOver", err)
	}
	if _, there := a.data()["b"]; there {
		t.Error("the earlier holder wrote")
	}
	must(t, stop())
}

// A page that the earlier holder began just then is found when its number is
// needed.
func TestLatePageOfTheEarlierHolderIsFound(t *testing.T) {
	a := newAPI()
	cfg := config(a)
	cfg.PageBytes = 50
	old, _, stopOld := open(t, cfg)
	var found map[string]string
	cfg.Found = func(_ context.Context, records map[string]string) { found = records }
	j, _, stop := open(t, cfg)
	// The page is created although the lease has gone: it was on its way.
	old.room(nil, 1<<10)
	if err := old.writePage(t.Context(), old.pages[1], map[string]string{"late": "x"}, nil); err != nil {
		t.Fatal(err)
	}
	must(t, j.Put(t.Context(), "a", strings.Repeat("x", 40)))
	must(t, j.Put(t.Context(), "b", strings.Repeat("x", 40)))
	if diff := cmp.Diff(map[string]string{"late": "x"}, found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	if data := a.data(); len(data) != 3 || data["late"] != "x" {
		t.Errorf("in the cluster: %v", data)
	}
	if data := j.Records(); len(data) != 3 {
		t.Errorf("Records() = %v", data)
	}
	_ = stopOld()
	must(t, stop())
}

func TestLostAnswerIsNoConflictWithOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		cfg := config(a)
		cfg.Found = func(_ context.Context, records map[string]string) { t.Errorf("Found(%v) of our own records", records) }
		j, _, stop := open(t, cfg)
		lost := 0
		a.after = func(*v1.ConfigMap) error {
			if lost++; lost == 1 {
				return apierrors.NewTimeoutError("the answer is lost", 1)
			}
			return nil
		}
		must(t, j.Put(t.Context(), "a", "1"))
		if diff := cmp.Diff(map[string]string{"a": "1"}, a.data()); diff != "" || lost != 2 {
			t.Errorf("after %d writes (-want +got):\n%s", lost, diff)
		}
		must(t, stop())
	})
}

func TestForbiddenWriteIsToldAndRecovers(t *testing.T) {
	a := newAPI()
	j, _, stop := open(t, config(a))
	a.before = func(cm *v1.ConfigMap) error {
		return apierrors.NewForbidden(v1.Resource("configmaps"), cm.Name, errors.New("no role"))
	}
	err := j.Put(t.Context(), "a", "1")
	if err == nil || !strings.Contains(err.Error(), "allow get, list, create and update of configmaps") {
		t.Errorf("Put() = %v, want what to do", err)
	}
	a.before = nil
	must(t, j.Put(t.Context(), "a", "1"))
	if a.data()["a"] != "1" {
		t.Errorf("in the cluster: %v", a.data())
	}
	must(t, stop())
}

func TestDeletedPageIsMadeAgain(t *testing.T) {
	a := newAPI()
	j, _, stop := open(t, config(a))
	must(t, j.Put(t.Context(), "a", "1"))
	a.mu.Lock()
	clear(a.maps)
	a.mu.Unlock()
	must(t, j.Put(t.Context(), "b", "2"))
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2"}, a.data()); diff != "" {
		t.Errorf("in the cluster (-want +got):\n%s", diff)
	}
	must(t, stop())
}

func TestPutGivesUpWithItsContextAndLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		j, _, stop := open(t, config(a))
		var mu sync.Mutex
		down := true
		a.before = func(*v1.ConfigMap) error {
			mu.Lock()
			defer mu.Unlock()
			if down {
				return apierrors.NewServiceUnavailable("no server")
			}
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := j.Put(ctx, "a", "1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Put() = %v", err)
		}
		mu.Lock()
		down = false
		mu.Unlock()
		time.Sleep(2 * DefaultRetryMax)
		synctest.Wait()
		if len(a.data()) != 0 {
			t.Errorf("a record that was given up stays: %v", a.data())
		}
		must(t, stop())
	})
}

func TestConfigIsValidated(t *testing.T) {
	for problem, change := range map[string]func(*Config){
		"Client must":      func(c *Config) { c.Client = nil },
		"a Namespace must": func(c *Config) { c.Namespace = "" },
		"cannot begin":     func(c *Config) { c.Name = "No_Name" },
		"not be neg":       func(c *Config) { c.Timeout = -1 },
	} {
		cfg := config(newAPI())
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), problem) {
			t.Errorf("New() = %v, want %q", err, problem)
		}
	}
}

// Whatever is put and removed, and whenever the holder dies: what was
// acknowledged and not removed is found by the next, as it was put.
func TestNothingAcknowledgedIsEverLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a := newAPI()
		cfg := config(a)
		cfg.PageBytes = 64
		j, _, stop := open(t, cfg)
		want := map[string]string{}
		n := 0
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"put", "put", "remove", "die", "lose"}).Draw(rt, "step") {
			case "put":
				n++
				key := fmt.Sprintf("k%d", rapid.IntRange(0, 8).Draw(rt, "key"))
				if _, there := want[key]; there {
					continue
				}
				value := fmt.Sprintf("%d-%s", n, strings.Repeat("x", rapid.IntRange(0, 30).Draw(rt, "size")))
				must(t, j.Put(t.Context(), key, value))
				want[key] = value
			case "remove":
				for key := range want {
					j.Remove(key)
					delete(want, key)
					break
				}
			case "die":
				must(t, stop())
				var records map[string]string
				j, records, stop = open(t, cfg)
				if diff := cmp.Diff(want, records); diff != "" {
					rt.Fatalf("the next holder finds (-want +got):\n%s", diff)
				}
			case "lose":
				var once sync.Once
				a.mu.Lock()
				a.after = func(*v1.ConfigMap) (err error) {
					once.Do(func() { err = apierrors.NewConflict(v1.Resource("configmaps"), "", nil) })
					return err
				}
				a.mu.Unlock()
			}
		}
		must(t, stop())
		if diff := cmp.Diff(want, a.data()); diff != "" {
			rt.Fatalf("at the end (-want +got):\n%s", diff)
		}
	})
}
