package provisioner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
)

// sharing is a maker that shares claims and volumes with others.
type sharing struct {
	*maker
	mu    sync.Mutex
	share func(*v1.PersistentVolumeClaim) (bool, time.Duration, error)
	asked map[string][]time.Duration
	began time.Time
	guard func(*v1.PersistentVolume) bool
}

func (s *sharing) Share(_ context.Context, claim *v1.PersistentVolumeClaim) (bool, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[claim.Name] = append(s.asked[claim.Name], time.Since(s.began))
	return s.share(claim)
}

func (s *sharing) ShouldDelete(_ context.Context, pv *v1.PersistentVolume) bool {
	return s.guard == nil || s.guard(pv)
}

// Owns goes by the selected node alone.
func (s *sharing) Owns(claim *v1.PersistentVolumeClaim) bool {
	return claim.Annotations[AnnotationSelectedNode] == "me"
}

// ShouldProvision must not be asked.
func (s *sharing) ShouldProvision(context.Context, *v1.PersistentVolumeClaim) bool { panic("asked") }

func runSharing(t *testing.T, s *sharing, objects ...runtime.Object) (*fake.Clientset, *record.FakeRecorder) {
	t.Helper()
	s.maker, s.asked, s.began = &maker{}, map[string][]time.Duration{}, time.Now()
	client, events := fake.NewClientset(objects...), record.NewFakeRecorder(100)
	ctrl := NewProvisionController(client, 0, ourName, s, "", true, 0, WithEventRecorder(events), WithWorkers(1), WithoutRetryLimit())
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); ctrl.Run(stop) }()
	t.Cleanup(func() { close(stop); <-ended })
	return client, events
}

// TestAWaitForAClaimHoldsUpNoWorker, is as long as was said, and is no failure.
func TestAWaitForAClaimHoldsUpNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sharing{share: func(c *v1.PersistentVolumeClaim) (bool, time.Duration, error) {
			if c.Name == "mine" {
				return true, 0, nil
			}
			return false, time.Minute, nil
		}}
		_, events := runSharing(t, s, storageClass("class-1", ourName), claim("a", "uid-a", "class-1", ourName), claim("mine", "uid-m", "class-1", ourName))
		time.Sleep(5*time.Minute + time.Second)
		synctest.Wait()
		if n, _ := s.calls(); n != 1 || s.provided[0].PVC.Name != "mine" {
			t.Errorf("%d volumes were made, want that of the claim that is ours", n)
		}
		asked := s.asked["a"]
		if len(asked) != 6 {
			t.Fatalf("asked at %v, want once at first and then each minute", asked)
		}
		for i := range asked[1:] {
			if pause := asked[i+1] - asked[i]; pause != time.Minute {
				t.Errorf("asked after %v, want a minute", pause)
			}
		}
		if len(events.Events) != 1 {
			t.Errorf("%d events, want that of the success alone", len(events.Events))
		}
	})
}

// TestAClaimOfOthersIsNotAskedAbout until it changes.
func TestAClaimOfOthersIsNotAskedAbout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sharing{share: func(c *v1.PersistentVolumeClaim) (bool, time.Duration, error) {
			return c.Annotations[AnnotationSelectedNode] == "me", 0, nil
		}}
		object := claim("a", "uid-a", "class-1", ourName)
		client, _ := runSharing(t, s, storageClass("class-1", ourName), object)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(s.asked["a"]); n != 1 {
			t.Fatalf("asked %d times", n)
		}
		is := object.DeepCopy()
		is.Annotations[AnnotationSelectedNode] = "me"
		if err := client.Tracker().Update(v1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), is, "default"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n, _ := s.calls(); n != 1 || s.provided[0].SelectedNode != "me" {
			t.Errorf("%d volumes were made once the claim was ours", n)
		}
	})
}

// TestNotKnowingWhoseAClaimIs backs it off, and tells the claim nothing, unless a
// permission is missing: that is told once.
func TestNotKnowingWhoseAClaimIs(t *testing.T) {
	t.Run("for now", func(t *testing.T) { notKnowing(t, errors.New("not known"), 0) })
	t.Run("forbidden", func(t *testing.T) {
		notKnowing(t, fmt.Errorf("taking the claim: %w", apierrors.NewForbidden(v1.Resource("persistentvolumeclaims"), "a", errFake)), 1)
	})
}

func notKnowing(t *testing.T, why error, told int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &sharing{share: func(*v1.PersistentVolumeClaim) (bool, time.Duration, error) {
			return false, time.Nanosecond, why
		}}
		_, events := runSharing(t, s, storageClass("class-1", ourName), claim("a", "uid-a", "class-1", ourName))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(s.asked["a"]); n < 4 || n > 8 {
			t.Errorf("asked %d times in a minute, want the usual backoff: %v", n, s.asked["a"])
		}
		if n, _ := s.calls(); n > 0 || len(events.Events) != told {
			t.Errorf("%d calls, %d events, want %d", n, len(events.Events), told)
		}
	})
}

// TestVolumesOfOthersAreNotTouched: neither read, deleted, nor given a finalizer.
func TestVolumesOfOthersAreNotTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const del = v1.PersistentVolumeReclaimDelete
		s := &sharing{
			share: func(*v1.PersistentVolumeClaim) (bool, time.Duration, error) { return false, 0, nil },
			guard: func(pv *v1.PersistentVolume) bool { return pv.Name == "mine" },
		}
		client, events := runSharing(t, s,
			pv("mine", v1.VolumeReleased, del, ourName, csiVolume(ourName, "m"), withFinalizers(Finalizer)),
			pv("released", v1.VolumeReleased, del, ourName, csiVolume(ourName, "r"), withFinalizers(Finalizer)),
			pv("bound", v1.VolumeBound, del, ourName, csiVolume(ourName, "b")))
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, n := s.calls(); n != 1 || s.removed[0] != "mine" {
			t.Errorf("deleted %v, want ours alone", s.removed)
		}
		for _, action := range client.Actions() {
			if name, ok := action.(interface{ GetName() string }); ok && name.GetName() != "mine" && action.GetResource().Resource == "persistentvolumes" {
				t.Errorf("%s of PersistentVolume %s", action.GetVerb(), name.GetName())
			}
		}
		if len(events.Events) > 0 {
			t.Errorf("%d events", len(events.Events))
		}
	})
}

// unopened is one whose records cannot be read.
type unopened struct{ *sharing }

func (unopened) Begun(context.Context, func(*v1.PersistentVolumeClaim)) ([]*v1.PersistentVolumeClaim, error) {
	return nil, errors.New("the journal cannot be read")
}

// TestOnlyOurClaimsAreToldWhyTheyWait: a hundred nodes must not tell each claim of
// the cluster that their journals cannot be read, nor take it to find out.
func TestOnlyOurClaimsAreToldWhyTheyWait(t *testing.T) {
	on := func(node string) func(*v1.PersistentVolumeClaim) { return annotated(AnnotationSelectedNode, node) }
	for name, wrap := range map[string]func(*maker) Provisioner{
		"shared": func(m *maker) Provisioner {
			return unopened{&sharing{maker: m, asked: map[string][]time.Duration{}, share: func(*v1.PersistentVolumeClaim) (bool, time.Duration, error) {
				panic("asked")
			}}}
		},
		"qualified": func(m *maker) Provisioner {
			m.unwanted = func(c *v1.PersistentVolumeClaim) bool { return c.Annotations[AnnotationSelectedNode] != "me" }
			return &unread{maker: m, times: 1 << 30}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setup{wrap: wrap, noResync: true, objects: []runtime.Object{
					storageClass("class-1", ourName), claim("mine", "uid-m", "class-1", ourName, on("me")),
					claim("theirs", "uid-t", "class-1", ourName, on("them")), claim("open", "uid-o", "class-1", ourName),
				}})
				w.rest(100)
				if events := w.told(); len(events) != 1 {
					t.Errorf("events %q, want one, for our claim", events)
				}
			})
		})
	}
}
