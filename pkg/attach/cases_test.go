package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2/ktesting"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Cases from public bug reports, by their numbers: EA is external-attacher, KK is
// Kubernetes. Those about lists of the driver are in compare_test.go, those about
// restarts in restart_test.go.

// kk#124334: a publish that timed out may have worked, so that the other node
// waits for an unpublish of the first.
func TestKK124334_UncertainNodeIsUnpublishedBeforeAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
		r.driver.set(behaviour{effect: true, err: errTimeout})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(500 * time.Millisecond)
			r.driver.set(healthy)
			r.api.add(va("va2", "a", "n2"))
			r.settle(10 * time.Millisecond)
			wantCalls(t, r, "publish h-a id-n1")
			r.api.remove(vaResource, "va1")
			r.settle(10 * time.Millisecond)
			wantGone(t, r, "va1")
			wantAttached(t, r, "va2", true)
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1", "publish h-a id-n2")
		})
	})
}

// ea#337: our own status writes and those of others to managed fields do not
// defeat the backoff.
func TestEA337_BackoffHolds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"), node("n1"))...)
		r.driver.set(behaviour{err: errTimeout})
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			for range 60 {
				r.settle(500 * time.Millisecond)
				r.api.change(vaResource, "va", func(o runtime.Object) {
					o.(*storagev1.VolumeAttachment).ManagedFields = []metav1.ManagedFieldsEntry{{Manager: r.driver.log()}}
				})
			}
			if n := r.driver.count("publish"); n < 3 || n > 6 {
				t.Errorf("%d publishes in 30 s, want 3 to 6", n)
			}
			r.driver.set(healthy)
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
		})
	})
}

// ea#83, ea#215: a node that is gone is detached by the recorded ID, and only
// on the deletion of its VolumeAttachment.
func TestEA83_NodeGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.api.remove(nodeResource, "n1")
			r.api.remove(csiNodeResource, "n1")
			r.settle(10 * time.Minute)
			wantAttached(t, r, "va", true)
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			wantGone(t, r, "va")
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
		})
	})
}

// ea#164, linstor-csi#52: no error of an unpublish passes for success, and the
// driver is not asked without end.
func TestEA164_DetachErrorKeepsTheFinalizer(t *testing.T) {
	for _, err := range []*callError{{5, volume.OutcomeFinal, "not found"}, {13, volume.OutcomeUncertain, strings.Repeat("é", 5000) + "\xff"}} {
		t.Run(err.code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), node("n2"))...)
				r.run(t, func(t *testing.T) {
					r.api.add(va("va", "a", "n1"))
					r.settle(time.Second)
					r.driver.set(behaviour{err: err})
					r.api.remove(vaResource, "va")
					r.api.add(va("va2", "a", "n2"))
					r.settle(time.Hour)
					a := wantAttached(t, r, "va", true)
					if a.Status.DetachError == nil || len(a.Status.DetachError.Message) > 1024 || *a.Status.DetachError.ErrorCode != int32(err.code) {
						t.Errorf("detachError is %v", a.Status.DetachError)
					}
					if n := r.driver.count("unpublish"); n < 10 || n > 30 {
						t.Errorf("%d unpublishes in an hour, want 10 to 30", n)
					}
					wantAttached(t, r, "va2", false)
					r.driver.set(healthy)
					r.settle(10 * time.Minute)
					wantGone(t, r, "va")
					wantAttached(t, r, "va2", true)
				})
			})
		})
	}
}

// ea#235: a volume whose PersistentVolume is gone is detached by what is
// recorded on its VolumeAttachment, even after a restart.
func TestEA235_PVGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"), published("old", "nowhere", "n1", true))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			r.api.change(pvResource, "a", func(o runtime.Object) { o.(*v1.PersistentVolume).Finalizers = nil })
			r.api.remove(pvResource, "a")
			r.restart()
			r.api.remove(vaResource, "va")
			r.api.remove(vaResource, "old")
			r.settle(time.Hour)
			wantGone(t, r, "va")
			if e := wantAttached(t, r, "old", true).Status.DetachError; e == nil || !strings.Contains(e.Message, "nowhere") {
				t.Errorf("detachError of one that nobody can resolve: %v", e)
			}
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
		})
	})
}

// kk#141541: two VolumeAttachments of one volume and node share one publication.
func TestKK141541_TwoAttachmentsOfOneKey(t *testing.T) {
	bubble(t, func(t *testing.T) {
		twin := rwo("twin")
		twin.Spec.CSI.VolumeHandle = "h-a"
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), twin, node("n1"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va1", "a", "n1"))
			r.settle(time.Second)
			r.api.add(va("va2", "twin", "n1"))
			r.settle(time.Second)
			if a := wantAttached(t, r, "va2", true); !slices.Contains(a.Finalizers, finalizer) || a.Annotations[volume.AnnotationNodeID] != "id-n1" {
				t.Errorf("attached without an intent: %v %v", a.Finalizers, a.Annotations)
			}
			r.api.remove(vaResource, "va1")
			r.settle(time.Second)
			wantGone(t, r, "va1")
			wantCalls(t, r, "publish h-a id-n1")
			r.api.remove(vaResource, "va2")
			r.settle(time.Second)
			wantGone(t, r, "va2")
			wantCalls(t, r, "publish h-a id-n1", "unpublish h-a id-n1")
		})
	})
}

// ea#761: detaches that hang do not keep an attach waiting.
func TestEA761_HangingDetachesDoNotStarveAttaches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		objs := objects(node("n1"), rwo("fresh"))
		for _, n := range strings.Fields("a b c d e f g h i j k l m n o p q r s t") {
			objs = append(objs, rwo(n), va(n, n, "n1"))
		}
		r := newRig(newFakeDriver(), objs...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Second)
			r.driver.setFunc(func(method, _, _ string) behaviour {
				if method == "unpublish" {
					return behaviour{takes: time.Hour}
				}
				return healthy
			})
			for _, n := range strings.Fields("a b c d e f g h i j k l m n o p q r s t") {
				r.api.remove(vaResource, n)
			}
			r.settle(time.Second)
			if n, _ := r.c.lanes.detach.depth(); n != 10 {
				t.Errorf("%d detaches wait, want 10: the workers' number less than all", n)
			}
			r.api.add(va("fresh", "fresh", "n1"))
			r.settle(10 * time.Millisecond)
			wantAttached(t, r, "fresh", true)
			r.driver.set(healthy)
			r.settle(10 * time.Minute)
		})
	})
}

// An attach that has failed once does not wait behind detaches that hang again and
// again (I8).
func TestEA761_HangingDetachesDoNotStarveRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const detaches = 100
		objs := objects(node("n1"), rwo("x"))
		for i := range detaches {
			objs = append(objs, rwo(fmt.Sprint("a", i)), va(fmt.Sprint("va", i), fmt.Sprint("a", i), "n1"))
		}
		r := newRig(newFakeDriver(), objs...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			var failed atomic.Bool
			r.driver.setFunc(func(method, handle, _ string) behaviour {
				switch {
				case method == "unpublish":
					return behaviour{takes: time.Hour}
				case handle == "h-x" && !failed.Swap(true):
					return behaviour{err: errAborted}
				}
				return healthy
			})
			for i := range detaches {
				r.api.remove(vaResource, fmt.Sprint("va", i))
			}
			r.settle(10 * time.Minute) // all have failed
			r.api.add(va("vax", "x", "n1"))
			r.settle(5 * time.Second)
			wantAttached(t, r, "vax", true)
			r.driver.set(healthy)
			r.settle(time.Hour)
		})
	})
}

// The node plugin registers late: its CSINode ends the backoff.
func TestEA102_CSINodeAppears(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"))...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Hour)
			if e := wantAttached(t, r, "va", false).Status.AttachError; e == nil || !strings.Contains(e.Message, "CSINode n1") {
				t.Errorf("attachError is %v", e)
			}
			if f := r.api.va("va").Finalizers; len(f) > 0 {
				t.Errorf("finalizers %v before there is a node ID", f)
			}
			r.api.add(csiNode("n1", "id-n1"))
			r.settle(10 * time.Millisecond)
			wantAttached(t, r, "va", true)
		})
	})
}

// The list of CSINodes is slow to come at the start, and nothing is said of nodes
// before it is there.
func TestEA102_KK71052_CSINodesComeLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver(), objects(rwo("a"), node("n1"), va("va", "a", "n1"))...)
		ctx, cancel := context.WithCancel(t.Context())
		factory := informers.NewSharedInformerFactory(r.api, 0)
		c, err := New(Config{DriverName: testDriver, Driver: r.driver, Client: r.api, Informers: factory, Recorder: r.events})
		if err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		defer running.Wait()
		defer cancel()
		for _, inf := range []cache.SharedIndexInformer{c.vaInformer, c.pvInformer, c.nodeInformer} {
			running.Go(func() { inf.Run(ctx.Done()) })
		}
		running.Go(func() { must(c.Run(ctx)) })
		r.settle(time.Hour)
		if e := wantAttached(t, r, "va", false).Status.AttachError; e != nil {
			t.Errorf("attachError %v", e)
		}
		running.Go(func() { c.csiNodeInformer.Run(ctx.Done()) })
		r.settle(time.Minute)
		wantAttached(t, r, "va", true)
		if told := r.told(); len(told) > 0 {
			t.Errorf("events %q", told)
		}
	})
}

// EA706: a backlog is seen: in the metrics, and in the log.
func TestEA706_BacklogIsSeen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		objs := objects(node("n1"))
		for i := range 200 {
			objs = append(objs, rwo(fmt.Sprint("a", i)), va(fmt.Sprint("va", i), fmt.Sprint("a", i), "n1"))
		}
		r := newRig(newFakeDriver(), objs...)
		r.logger = logger
		r.config = func(cfg *Config) { cfg.Workers = 1 }
		r.driver.set(behaviour{effect: true, takes: time.Second})
		r.run(t, func(t *testing.T) {
			r.settle(100 * time.Second)
			if n, oldest := r.c.lanes.attach.depth(); n < 90 || oldest < longWait {
				t.Errorf("%d wait, the oldest for %v", n, oldest)
			}
			log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if n := strings.Count(log, "Work waits long"); n < 1 || n > 3 || !strings.Contains(log, `lane="attach"`) {
				t.Errorf("told %d times in the first 100 s:\n%s", n, log)
			}
			r.settle(10 * time.Minute)
			if n, _ := r.c.lanes.attach.depth(); n != 0 {
				t.Errorf("%d still wait", n)
			}
		})
	})
}

// EA682: VolumeAttachments of other drivers are nothing to talk about.
func TestEA682_ForeignAttachments(t *testing.T) {
	bubble(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(4)))
		objs := objects(node("n1"))
		for i := range 1000 {
			foreign := va(fmt.Sprint("va", i), "none", "n1")
			foreign.Spec.Attacher = "csi.example.org"
			objs = append(objs, foreign)
		}
		r := newRig(newFakeDriver(), objs...)
		r.logger = logger
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			r.api.remove(vaResource, "va1")
			r.settle(time.Minute)
			if n := strings.Count(logger.GetSink().(ktesting.Underlier).GetBuffer().String(), "\n"); n > 5 {
				t.Errorf("%d lines in the log", n)
			}
			if len(r.c.ledger.refs) > 0 || len(r.told()) > 0 {
				t.Error("they are taken for ours")
			}
		})
	})
}

// KK84169, KK86281: at rest nothing is read and nothing written.
func TestKK84169_NoRequestsAtRest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newFakeDriver()
		objs := objects(node("n1"))
		for i := range 200 {
			objs = append(objs, rwo(fmt.Sprint("a", i)), va(fmt.Sprint("va", i), fmt.Sprint("a", i), "n1"))
		}
		r := comparing(d, nil, objs...)
		r.run(t, func(t *testing.T) {
			r.settle(time.Minute)
			if n := d.count("publish"); n != 200 {
				t.Fatalf("%d publishes", n)
			}
			r.api.ClearActions()
			lists := d.listed()
			r.settle(3*DefaultEvidenceInterval + time.Second)
			if d.listed() < lists+3 {
				t.Fatalf("%d lists of the driver's", d.listed()-lists)
			}
			if n := len(r.api.Actions()); n > 0 {
				t.Errorf("%d requests at rest, the first: %v", n, r.api.Actions()[0])
			}
		})
	})
}

// Rook16956: a secret that is gone when the volume is to be detached is named, is
// waited for, and nothing is let go meanwhile.
func TestRook16956_SecretGoneAtDetach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := rwo("a")
		p.Spec.CSI.ControllerPublishSecretRef = &v1.SecretReference{Namespace: "ns", Name: "s"}
		secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
		r := newRig(newFakeDriver("h-a"), objects(p, node("n1"), secret)...)
		r.run(t, func(t *testing.T) {
			r.api.add(va("va", "a", "n1"))
			r.settle(time.Second)
			must(r.api.Tracker().Delete(resourceOf(secret), "ns", "s"))
			r.api.remove(vaResource, "va")
			r.settle(time.Hour)
			a := wantAttached(t, r, "va", true)
			if e := a.Status.DetachError; e == nil || !strings.Contains(e.Message, "ns/s") {
				t.Errorf("detachError %v", e)
			}
			wantCalls(t, r, "publish h-a id-n1")
			r.api.add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}})
			r.settle(2 * secretRetryMax)
			wantGone(t, r, "va")
		})
	})
}

// EP1217 (external-provisioner, EA PR 707): somebody else's finalizer comes and goes while ours is written; none
// is lost, and none is brought back that the API server would refuse.
func TestEP1217_FinalizersOfOthersAreKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(newFakeDriver("h-a"), objects(rwo("a"), node("n1"))...)
		r.run(t, func(t *testing.T) {
			races := 0
			theirs := func(o runtime.Object) {
				races++
				o.(*v1.PersistentVolume).Finalizers = append(o.(*v1.PersistentVolume).Finalizers, fmt.Sprint("example.com/", races))
			}
			r.api.change(pvResource, "a", theirs)
			r.api.add(va("va", "a", "n1"))
			r.api.change(pvResource, "a", theirs)
			r.settle(time.Second)
			wantAttached(t, r, "va", true)
			if f := r.api.pv("a").Finalizers; len(f) != 3 || !slices.Contains(f, finalizer) {
				t.Errorf("finalizers %v", f)
			}
			r.api.remove(vaResource, "va")
			r.settle(time.Second)
			r.api.remove(pvResource, "a")
			r.api.change(pvResource, "a", func(o runtime.Object) {
				f := &o.(*v1.PersistentVolume).Finalizers
				*f = slices.DeleteFunc(*f, func(s string) bool { return strings.HasPrefix(s, "example.com/") })
			})
			r.settle(time.Second)
			if p := r.api.pv("a"); p != nil {
				t.Errorf("the PersistentVolume stays: %v", p.Finalizers)
			}
		})
	})
}

// Calls that hang again and again are tried again beside fresh work, and not
// before it.
func TestRetriesDoNotStarveFreshWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		objs := objects(node("n1"), rwo("fresh"), rwo("late"))
		for i := range 20 {
			objs = append(objs, rwo(fmt.Sprint("a", i)), va(fmt.Sprint("va", i), fmt.Sprint("a", i), "n1"))
		}
		r := newRig(newFakeDriver(), objs...)
		r.driver.setFunc(func(_, handle, _ string) behaviour {
			if strings.HasPrefix(handle, "h-a") {
				return behaviour{takes: time.Hour}
			}
			return healthy
		})
		r.run(t, func(t *testing.T) {
			r.settle(5 * time.Minute) // by now all of them have failed
			for range 50 {
				r.api.add(va("fresh", "fresh", "n1"))
				r.settle(10 * time.Millisecond)
				wantAttached(t, r, "fresh", true)
				r.api.remove(vaResource, "fresh")
				r.settle(7 * time.Second)
				wantGone(t, r, "fresh")
			}
			if r.driver.count("publish") < 100 {
				t.Error("what hangs is not tried again")
			}
			r.driver.set(healthy)
			r.settle(10 * time.Minute)
			for i := range 20 {
				wantAttached(t, r, fmt.Sprint("va", i), true)
			}
		})
	})
}
