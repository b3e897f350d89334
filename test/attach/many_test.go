package attach

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/simctl"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// many is a number of attached volumes, and foreign of VolumeAttachments of
// another driver.
const many, foreign = 40, 100

// Many volumes share what follows, since it takes a while to make them.
func TestManyVolumes(t *testing.T) {
	w := sharedWorld(t)
	ctx := bounded(t)
	name := func(i int) string { return fmt.Sprintf("many-%02d", i) }
	for i := range many {
		w.volume(ctx, t, name(i))
		w.attachment(ctx, t, name(i), name(i), "node-1")
	}
	for i := range many {
		w.awaitAttached(ctx, t, name(i))
	}

	// Attachments of other drivers are nothing to talk about.
	t.Run("EA682_ForeignAttachments", func(t *testing.T) {
		logged := strings.Count(w.leaderLog(), "\n")
		for i := range foreign {
			w.attachment(ctx, t, fmt.Sprintf("foreign-%03d", i), "none", "node-1", func(va *storagev1.VolumeAttachment) {
				va.Spec.Attacher = "other.csi.example.com"
			})
		}
		w.lists(ctx, t, 2)
		if n := strings.Count(w.leaderLog(), "foreign-"); n != 0 {
			t.Errorf("%d lines of the log name them", n)
		}
		if n := strings.Count(w.leaderLog(), "\n") - logged; n > foreign/10 {
			t.Errorf("%d lines were logged", n)
		}
		for _, q := range w.since(t, time.Time{}) {
			if strings.HasPrefix(q.Name, "foreign-") {
				t.Errorf("ha-sidecar asked %s %s", q.Verb, q.URI)
			}
		}
	})

	// At rest nothing is read and nothing is written, whatever the number of
	// volumes and however often the driver is asked for its list.
	t.Run("KK84169_KK86281_NoRequestsAtRest", func(t *testing.T) {
		w.lists(ctx, t, 1)
		began := time.Now()
		w.lists(ctx, t, 4)
		for _, q := range w.since(t, began) {
			if q.Resource != "leases" {
				t.Errorf("ha-sidecar asked %s %s", q.Verb, q.URI)
			}
		}
		for i := range many {
			w.wire.wantStory(t, handle(name(i)), "publish node-1")
		}
	})

	// A list that breaks off, hangs or fails proves nothing, of those volumes
	// neither that it told of before.
	t.Run("EA599_EA356_ListFails", func(t *testing.T) {
		for what, f := range map[string]simctl.Fault{
			"it fails": {Method: list, Code: codes.Unavailable}, "it hangs": {Method: list, Hang: true},
		} {
			id, clear := w.inject(ctx, t, f)
			if _, err := w.Driver.AwaitHits(ctx, id, 2); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			clear()
		}
		second := 0
		undo := w.wire.change(t.Name(), func(a *answer) {
			var m csi.ListVolumesRequest
			if a.Method == list && proto.Unmarshal(a.Request, &m) == nil && m.StartingToken != "" {
				second++
				a.Code = codes.Aborted
			}
		})
		defer undo()
		w.restarts(t, "--max-entries=10")
		w.await(ctx, t, "a second page has failed three times", func() bool {
			w.wire.mu.Lock()
			defer w.wire.mu.Unlock()
			return second >= 3
		})
		for i := range many {
			w.wire.wantStory(t, handle(name(i)), "publish node-1")
		}
	})

	// All workers of the detach lane hang, and an attach goes through at once.
	t.Run("EA761_HangingDetachesDoNotStarveAttaches", func(t *testing.T) {
		_, clear := w.inject(ctx, t, simctl.Fault{Method: unpublish, Hang: true})
		for i := range many {
			w.remove(ctx, t, name(i))
		}
		w.await(ctx, t, "all workers hang", func() bool {
			faults, err := w.Driver.Faults(ctx)
			return err == nil && len(faults) == 1 && faults[0].Waiting >= 10
		})
		w.volume(ctx, t, "many-fresh")
		began := time.Now()
		w.attached(ctx, t, "many-fresh", "many-fresh", "node-1")
		took := time.Since(began)
		t.Logf("attached after %v", took)
		if took > time.Second {
			t.Errorf("the attach took %v behind detaches that hang, want less than 1s", took)
		}
		clear()
		for i := range many {
			w.gone(ctx, t, name(i))
		}
	})
}

// since lists the requests of ha-sidecar that began then or later, but for the
// watches, which last.
func (w *world) since(t *testing.T, began time.Time) (found []rig.Request) {
	t.Helper()
	all, err := w.Requests()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range all {
		if !q.Begun.Before(began) && q.Verb != "watch" {
			found = append(found, q)
		}
	}
	return found
}

// leaderLog is the log of the newest replica.
func (w *world) leaderLog() string { return w.LogOf(fmt.Sprintf("ha-sidecar-%d", len(w.Sidecars))) }
