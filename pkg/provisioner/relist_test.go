package provisioner

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// line is the watch of one resource, which can be cut.
type line struct {
	mu      sync.Mutex
	watches []watch.Interface
	// missed: the next watch cannot go on from where the last one ended.
	missed bool
	lists  int
}

func newLine(c *fake.Clientset, res string) *line {
	l := &line{}
	c.PrependReactor("list", res, func(clienttesting.Action) (bool, runtime.Object, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.missed = false
		l.lists++
		return false, nil, nil
	})
	c.PrependWatchReactor(res, func(action clienttesting.Action) (bool, watch.Interface, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.missed {
			return true, nil, apierrors.NewResourceExpired("too old resource version")
		}
		w, err := c.Tracker().Watch(action.GetResource(), action.GetNamespace())
		if err == nil {
			l.watches = append(l.watches, w)
		}
		return true, w, err
	})
	return l
}

// cut has something happen that no watch tells of, and the next one finds that its
// version is too old.
func (l *line) cut(happens func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missed = true
	for _, w := range l.watches {
		w.Stop()
	}
	l.watches = nil
	happens()
}

// listed is how often the informer has listed.
func (l *line) listed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lists
}

// TestDeletionsThatARelistTellsOf (external-provisioner 582): while the watch is
// away an object is deleted, and the informer has its last known state alone to
// tell of it. Whoever waits for it to go is woken by that, before anything is
// polled, and what was remembered of it is forgotten.
func TestDeletionsThatARelistTellsOf(t *testing.T) {
	for name, c := range map[string]struct {
		res     string
		objects []runtime.Object
		// waits is a part of the event that says what is waited for, where there is one.
		waits string
		gone  func(*world)
		// removed and made are the calls after it.
		made, removed int
	}{
		"claim of a Released volume": {
			res: "persistentvolumeclaims", waits: "yet its claim default/claim-1 exists", removed: 1,
			objects: []runtime.Object{released(), claim("claim-1", "uid-1-1", "class-1", otherName, func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "volume-1" })},
			gone:    func(w *world) { w.api.dropClaim("claim-1") },
		},
		"claim that failed": {
			res: "persistentvolumeclaims", waits: "does not support block volume provisioning",
			objects: []runtime.Object{storageClass("class-1", ourName), claim("claim-1", "uid-1-1", "class-1", ourName, func(c *v1.PersistentVolumeClaim) {
				block := v1.PersistentVolumeBlock
				c.Spec.VolumeMode = &block
			})},
			gone: func(w *world) { w.api.dropClaim("claim-1") },
		},
		"PersistentVolume of a claim": {
			res: "persistentvolumes", made: 1,
			objects: append(oneClaim(), pv(savedName, v1.VolumeAvailable, retain, ourName, claimed("uid-1-1"))),
			gone:    func(w *world) { w.api.dropPV(savedName) },
		},
		"PersistentVolume of the same volume": {
			res: "persistentvolumes", waits: "PersistentVolume volume-2 stands for it too", removed: 1,
			objects: []runtime.Object{released(), twin(v1.VolumeAvailable, retain, withFinalizers())},
			gone:    func(w *world) { w.api.dropPV("volume-2") },
		},
		"VolumeAttachment": {
			res: "volumeattachments", waits: "VolumeAttachment va-1 attaches it", removed: 1,
			objects: []runtime.Object{released(), attachment(ofPV("volume-1"))},
			gone:    func(w *world) { w.api.dropAttachment("va-1") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l *line
				w := newWorld(t, setup{
					objects: c.objects, noResync: true, exponential: true,
					before:  func(fk *fake.Clientset) { l = newLine(fk, c.res) },
					options: []Option{WithVolumeAttachments(nil), WithRetryInterval(time.Hour, 2*time.Hour)},
				})
				w.rest(10)
				if events := w.told(); len(events) > 1 || !strings.Contains(strings.Join(events, ""), c.waits) {
					t.Fatalf("events %q, want one that says what is waited for: %s", events, c.waits)
				}
				if made, removed := w.maker.calls(); made+removed > 0 {
					t.Errorf("%d made, %d deleted before", made, removed)
				}
				l.cut(func() { c.gone(w) })
				// Less than lookAgain: nothing is polled by then.
				time.Sleep(lookAgain - 2*time.Second)
				synctest.Wait()
				if l.listed() != 2 {
					t.Errorf("%d lists, want one more than at the start", l.listed())
				}
				if made, removed := w.maker.calls(); made != c.made || removed != c.removed {
					t.Errorf("%d made, want %d; %d deleted, want %d", made, c.made, removed, c.removed)
				}
				if c.made == 0 {
					nothingRemembered(t, w)
				}
			})
		})
	}
}
