package nodeshare

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

const driver = "d.example.com"

func newClass(name string, change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	mode := storagev1.VolumeBindingImmediate
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver, VolumeBindingMode: &mode}
	for _, f := range change {
		f(class)
	}
	return class
}

func newClaim(name, class string, change ...func(*v1.PersistentVolumeClaim)) *v1.PersistentVolumeClaim {
	claim := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "1",
			Annotations: map[string]string{provisioner.AnnotationStorageProvisioner: driver, "kept": "as it is"},
		},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class},
	}
	for _, f := range change {
		f(claim)
	}
	return claim
}

func selectedBy(node string) func(*v1.PersistentVolumeClaim) {
	return func(c *v1.PersistentVolumeClaim) { c.Annotations[provisioner.AnnotationSelectedNode] = node }
}

func lister(classes ...*storagev1.StorageClass) storagelisters.StorageClassLister {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, class := range classes {
		if err := indexer.Add(class); err != nil {
			panic(err)
		}
	}
	return storagelisters.NewStorageClassLister(indexer)
}

func at(t *testing.T, segments map[string]string) *topology.Here {
	t.Helper()
	here, err := topology.NewHere(segments)
	if err != nil {
		t.Fatal(err)
	}
	return here
}

// stage is one sharer, whose time is the test's. Its first wait is 10 s.
type stage struct {
	t      *testing.T
	api    *api
	clock  *testingclock.FakeClock
	sharer *Sharer
	claim  *v1.PersistentVolumeClaim
}

func newStage(t *testing.T, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, change ...func(*Config)) *stage {
	t.Helper()
	s := &stage{t: t, api: newAPI(claim), clock: testingclock.NewFakeClock(start), claim: claim}
	cfg := Config{
		Node: "n1", Place: at(t, map[string]string{"zone": "a"}), Immediate: true, Client: s.api, Classes: lister(class),
		Clock: s.clock, Random: func() float64 { return 0.5 },
	}
	for _, f := range change {
		f(&cfg)
	}
	var err error
	if s.sharer, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

// share asks about the claim as it was at first.
func (s *stage) share() (bool, time.Duration) {
	s.t.Helper()
	mine, again, err := s.sharer.Share(s.t.Context(), s.claim)
	if err != nil {
		s.t.Fatal(err)
	}
	return mine, again
}

// due lets the first wait go by.
func (s *stage) due() {
	s.t.Helper()
	if mine, again := s.share(); mine || again != 10*time.Second {
		s.t.Fatalf("Share() = %v, %v at first, want a wait of 10s", mine, again)
	}
	s.clock.Step(10 * time.Second)
}

func (s *stage) live() *v1.PersistentVolumeClaim {
	s.t.Helper()
	claim, err := s.api.live(s.claim.Namespace, s.claim.Name)
	if err != nil {
		s.t.Fatal(err)
	}
	return claim
}

// TestAClaimIsTaken, and only once that is seen it is ours. Nothing else of it
// changes.
func TestAClaimIsTaken(t *testing.T) {
	for name, updatesOnly := range map[string]bool{"by patch": false, "by update, where that is all that is allowed": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, newClaim("c", "fast"), newClass("fast"))
			s.api.updatesOnly = updatesOnly
			s.due()
			if mine, again := s.share(); mine || again != 0 {
				t.Errorf("Share() = %v, %v, want to wait for the change alone", mine, again)
			}
			s.claim = s.live()
			if s.claim.Annotations[provisioner.AnnotationSelectedNode] != "n1" || s.claim.Annotations["kept"] == "" || s.api.writes != 1 {
				t.Errorf("after %d writes the claim has annotations %v", s.api.writes, s.claim.Annotations)
			}
			if mine, _ := s.share(); !mine {
				t.Error("the claim that we took is not ours")
			}
		})
	}
}

// TestWhoseAClaimIs is told without a call, a write or a wait.
func TestWhoseAClaimIs(t *testing.T) {
	s := newStage(t, newClaim("c", "fast"), newClass("fast"), func(cfg *Config) {
		cfg.HasRoom = func(context.Context, *v1.PersistentVolumeClaim, *storagev1.StorageClass) (bool, error) {
			t.Error("the driver was asked")
			return true, nil
		}
	})
	for node, want := range map[string]bool{"n1": true, "n2": false, "": false} {
		if got := s.sharer.Owns(newClaim("c", "fast", selectedBy(node))); got != want {
			t.Errorf("selected node %q: ours %v", node, got)
		}
	}
	if s.sharer.Owns(s.claim) || s.api.writes > 0 || len(s.sharer.races.byClaim) > 0 {
		t.Errorf("a claim that may become ours: %d writes, %d races", s.api.writes, len(s.sharer.races.byClaim))
	}
}

// TestAClaimWithTheClassInAnAnnotation alone, as of before Kubernetes 1.6, is
// shared like any other (T22).
func TestAClaimWithTheClassInAnAnnotation(t *testing.T) {
	s := newStage(t, newClaim("c", "", func(c *v1.PersistentVolumeClaim) {
		c.Spec.StorageClassName = nil
		c.Annotations["volume.beta.kubernetes.io/storage-class"] = "fast"
	}), newClass("fast"))
	s.due()
	s.share()
	if s.live().Annotations[provisioner.AnnotationSelectedNode] != "n1" {
		t.Error("the claim was not taken")
	}
}

// TestClaimsThatAreLeftAlone: no wait, no call, no write.
func TestClaimsThatAreLeftAlone(t *testing.T) {
	delayed := storagev1.VolumeBindingWaitForFirstConsumer
	elsewhere := func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"b"}}}}}
	}
	nowhere := func(c *storagev1.StorageClass) {
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone"}}}}
	}
	for name, c := range map[string]struct {
		claim *v1.PersistentVolumeClaim
		class *storagev1.StorageClass
		off   bool
	}{
		"of another node":            {claim: newClaim("c", "fast", selectedBy("n2")), class: newClass("fast")},
		"that wait for a pod":        {claim: newClaim("c", "fast"), class: newClass("fast", func(c *storagev1.StorageClass) { c.VolumeBindingMode = &delayed })},
		"of a class that is not":     {claim: newClaim("c", "slow"), class: newClass("fast")},
		"of a class for elsewhere":   {claim: newClaim("c", "fast"), class: newClass("fast", elsewhere)},
		"of a class for nowhere":     {claim: newClaim("c", "fast"), class: newClass("fast", nowhere)},
		"when immediate binding off": {claim: newClaim("c", "fast"), class: newClass("fast"), off: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, c.claim, c.class, func(cfg *Config) {
				cfg.Immediate = !c.off
				cfg.HasRoom = func(context.Context, *v1.PersistentVolumeClaim, *storagev1.StorageClass) (bool, error) {
					t.Error("the driver was asked")
					return true, nil
				}
			})
			for range 3 {
				if mine, again := s.share(); mine || again != 0 {
					t.Errorf("Share() = %v, %v", mine, again)
				}
				s.clock.Step(time.Hour)
			}
			if s.api.writes > 0 || len(s.sharer.races.byClaim) > 0 {
				t.Errorf("%d writes, %d races", s.api.writes, len(s.sharer.races.byClaim))
			}
		})
	}
}

// TestWhoIsTooLateLooksAgain, after a longer wait, and leaves the claim once it
// sees whose it is.
func TestWhoIsTooLateLooksAgain(t *testing.T) {
	for name, updatesOnly := range map[string]bool{"by patch": false, "by update": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, newClaim("c", "fast"), newClass("fast"))
			s.api.updatesOnly = updatesOnly
			s.due()
			s.api.change("default", "c", selectedBy("n2"))
			if mine, again := s.share(); mine || again != 20*time.Second {
				t.Errorf("Share() = %v, %v; want half of a window of 40s", mine, again)
			}
			if got := s.live().Annotations[provisioner.AnnotationSelectedNode]; got != "n2" || s.api.writes > 0 {
				t.Errorf("the claim is that of %q after %d writes of ours", got, s.api.writes)
			}
			s.claim = s.live()
			if mine, again := s.share(); mine || again != 0 {
				t.Errorf("Share() = %v, %v of another's claim", mine, again)
			}
		})
	}
}

// TestRoom: what the driver says of its room, and what follows.
func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		room  bool
		err   error
		takes bool
	}{
		"room":                   {room: true, takes: true},
		"no room":                {},
		"not ready":              {err: outcome(volume.OutcomeRetry)},
		"refuses the parameters": {err: outcome(volume.OutcomeFinal), takes: true},
		"an error of our own":    {err: errors.New("the claim has no size"), takes: true},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			s := newStage(t, newClaim("c", "fast"), newClass("fast"), func(cfg *Config) {
				cfg.HasRoom = func(context.Context, *v1.PersistentVolumeClaim, *storagev1.StorageClass) (bool, error) {
					asked++
					return c.room, c.err
				}
			})
			s.due()
			if asked > 0 {
				t.Error("the driver was asked before it was time")
			}
			_, again := s.share()
			if took := s.live().Annotations[provisioner.AnnotationSelectedNode] == "n1"; took != c.takes {
				t.Errorf("taken: %v, want %v", took, c.takes)
			}
			if want := 45 * time.Second; !c.takes && again != want {
				t.Errorf("looks again after %v, want %v", again, want)
			}
			if c.takes {
				return
			}
			// It may have room later.
			c.room, c.err = true, nil
			s.clock.Step(again)
			s.share()
			if s.live().Annotations[provisioner.AnnotationSelectedNode] != "n1" {
				t.Error("not taken once there is room")
			}
		})
	}
}

// outcome is an error that tells its outcome.
type outcome volume.Outcome

func (o outcome) Error() string           { return "outcome " + string(o) }
func (o outcome) Outcome() volume.Outcome { return volume.Outcome(o) }

func TestWritesThatFail(t *testing.T) {
	s := newStage(t, newClaim("c", "fast"), newClass("fast"))
	s.due()
	s.api.fail = apierrors.NewForbidden(claimGroup, "c", errors.New("no"))
	_, again, err := s.sharer.Share(t.Context(), s.claim)
	if err == nil || again != 0 || !strings.Contains(err.Error(), "default/c") || !strings.Contains(err.Error(), "allow patch or update of persistentvolumeclaims") {
		t.Errorf("forbidden: %v, %v", again, err)
	}
	s.api.fail = apierrors.NewNotFound(claimGroup, "c")
	if mine, again := s.share(); mine || again != 0 || len(s.sharer.races.byClaim) > 0 {
		t.Errorf("a claim that is gone: %v, %v", mine, again)
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := Config{Node: "n", Place: at(t, map[string]string{"a": "b"}), Client: newAPI(), Classes: lister()}
	for want, change := range map[string]func(*Config){
		"":               func(*Config) {},
		"Node must":      func(c *Config) { c.Node = "" },
		"Place, Client":  func(c *Config) { c.Place = nil },
		"BaseDelay -1s":  func(c *Config) { c.BaseDelay = -time.Second },
		"BaseDelay 2s":   func(c *Config) { c.BaseDelay, c.MaxDelay = 2*time.Second, time.Second },
		"Timeout is -1s": func(c *Config) { c.Timeout = -time.Second },
	} {
		cfg := good
		change(&cfg)
		_, err := New(cfg)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	// A longest wait that is not given is never shorter than the base.
	cfg, err := Config{Node: "n", Place: good.Place, Client: good.Client, Classes: good.Classes, BaseDelay: time.Hour}.withDefaults()
	if err != nil || cfg.MaxDelay != time.Hour {
		t.Errorf("%v, %v", cfg.MaxDelay, err)
	}
}
