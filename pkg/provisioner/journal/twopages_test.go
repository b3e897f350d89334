package journal

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// onTwoPages makes a journal in which one record is on both pages: the earlier
// holder began the second with it, late, when the new one had put it on the
// first.
func onTwoPages(t *testing.T, a *api, found *map[string]string) (j *Journal, stop func() error) {
	t.Helper()
	cfg := config(a)
	cfg.PageBytes = 50
	old, _, stopOld := open(t, cfg)
	cfg.Found = func(_ context.Context, records map[string]string) { *found = records }
	j, _, stop = open(t, cfg)
	must(t, j.Put(t.Context(), "twice", "x"))
	old.room(nil, 1<<10)
	must(t, old.writePage(t.Context(), old.pages[1], map[string]string{"twice": "x"}, nil))
	_ = stopOld()
	must(t, j.Put(t.Context(), "full", strings.Repeat("x", 39)))
	must(t, j.Put(t.Context(), "more", strings.Repeat("x", 39)))
	for _, page := range []string{name + "-0", name + "-1"} {
		if a.maps[page].Data["twice"] != "x" {
			t.Fatalf("page %s holds %v", page, a.maps[page].Data)
		}
	}
	return j, stop
}

// TestRecordOnTwoPagesIsRemovedFromBoth: what stayed on one would come up again
// with each leader, long after its volume was settled.
func TestRecordOnTwoPagesIsRemovedFromBoth(t *testing.T) {
	var found map[string]string
	a := newAPI()
	j, stop := onTwoPages(t, a, &found)
	j.Remove("twice")
	must(t, stop())
	if _, there := a.data()["twice"]; there {
		t.Errorf("the record stays: %v", a.data())
	}
}

// TestRecordOnTwoPagesIsRemovedByTheNextHolder: the one that finds them so.
func TestRecordOnTwoPagesIsRemovedByTheNextHolder(t *testing.T) {
	var found map[string]string
	a := newAPI()
	_, stop := onTwoPages(t, a, &found)
	must(t, stop())
	j, records, stop := open(t, config(a))
	if records["twice"] != "x" {
		t.Errorf("the next holder finds %v", records)
	}
	j.Remove("twice")
	must(t, stop())
	if _, there := a.data()["twice"]; there {
		t.Errorf("the record stays: %v", a.data())
	}
}

// TestRemovalFromOnePageOfTwoIsGoneOnWith: the other page could not be written.
func TestRemovalFromOnePageOfTwoIsGoneOnWith(t *testing.T) {
	for _, fails := range []string{name + "-0", name + "-1"} {
		t.Run(fails, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var found map[string]string
				a := newAPI()
				j, stop := onTwoPages(t, a, &found)
				var denied atomic.Bool
				denied.Store(true)
				a.before = func(cm *v1.ConfigMap) error {
					if denied.Load() && cm.Name == fails {
						return apierrors.NewForbidden(v1.Resource("configmaps"), cm.Name, errors.New("no role"))
					}
					return nil
				}
				j.Remove("twice")
				time.Sleep(3 * DefaultRemoveWithin)
				denied.Store(false)
				time.Sleep(3 * DefaultRemoveWithin)
				synctest.Wait()
				if _, there := a.data()["twice"]; there {
					t.Errorf("the record stays: %v", a.data())
				}
				must(t, stop())
			})
		})
	}
}
