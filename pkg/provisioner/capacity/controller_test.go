package capacity

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner/topology"
)

func TestAnObjectForEachPlaceAndClass(t *testing.T) {
	bubble(t, func(r *rig) {
		owner := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "csi", UID: "owner"}
		// Without polls: the first comes at any time within the interval.
		r.tune = func(cfg *Config) { cfg.Owner, cfg.PollInterval = owner, 10000*time.Hour }
		r.places.set(nil, "zone=a", "zone=b")
		r.class("fast", nil)
		r.class("slow", nil)
		r.class("foreign", func(c *storagev1.StorageClass) { c.Provisioner = "other.example.com" })
		r.class("immediate", func(c *storagev1.StorageClass) { c.VolumeBindingMode = nil })
		r.driver.room = map[string]int64{"zone=a fast": 1 << 40, "zone=a slow": 7, "zone=b": 0}
		r.driver.largest = map[string]int64{"zone=a": 5}
		r.start()
		// No room is something known.
		r.expect("zone=a fast 1099511627776/5", "zone=a slow 7/5", "zone=b fast 0", "zone=b slow 0")
		for _, obj := range r.api.objects() {
			obj.ManagedFields, obj.TypeMeta = nil, metav1.TypeMeta{} // the fake's own
			want := storagev1.CSIStorageCapacity{
				ObjectMeta: metav1.ObjectMeta{
					Name: obj.Name, GenerateName: "csisc-", Namespace: namespace, UID: obj.UID, ResourceVersion: obj.ResourceVersion, CreationTimestamp: obj.CreationTimestamp,
					Labels:          map[string]string{"csi.storage.k8s.io/drivername": driverName, "csi.storage.k8s.io/managed-by": "external-provisioner"},
					OwnerReferences: []metav1.OwnerReference{*owner},
				},
				NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{"zone": obj.NodeTopology.MatchLabels["zone"]}},
				StorageClassName: obj.StorageClassName, Capacity: obj.Capacity, MaximumVolumeSize: obj.MaximumVolumeSize,
			}
			if diff := cmp.Diff(want, obj); diff != "" {
				t.Error(diff)
			}
		}
		r.expectMetric("csistoragecapacities_desired_goal", 4)
		r.expectMetric("csistoragecapacities_desired_current", 4)
		r.expectMetric("csistoragecapacities_obsolete", 0)
		r.expectMetric("ha_sidecar_capacity_lookups_total{result=ok}", 4)
		r.expectMetric("ha_sidecar_capacity_writes_total{result=ok,verb=create}", 4)
	})
}

func TestImmediateClassesCountWhereAsked(t *testing.T) {
	bubble(t, func(r *rig) {
		r.tune = func(cfg *Config) { cfg.ImmediateBinding = true }
		immediate := storagev1.VolumeBindingImmediate
		r.places.set(nil, "zone=a")
		r.class("late", nil)
		r.class("unset", func(c *storagev1.StorageClass) { c.VolumeBindingMode = nil })
		r.class("immediate", func(c *storagev1.StorageClass) { c.VolumeBindingMode = &immediate })
		r.start()
		r.expect("zone=a immediate 0", "zone=a late 0", "zone=a unset 0")
	})
}

// The driver gets the parameters of the class as they are, and nothing that
// shares memory with the cache.
func TestTheDriverIsAskedForTheClassAndThePlace(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a,rack=1")
		parameters := map[string]string{"name": "c", "csi.storage.k8s.io/fstype": "ext4", "csi.storage.k8s.io/provisioner-secret-name": "s"}
		r.class("c", func(c *storagev1.StorageClass) { c.Parameters = parameters })
		r.start()
		req := r.driver.last
		if diff := cmp.Diff(parameters, req.GetParameters()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[string]string{"zone": "a", "rack": "1"}, req.GetAccessibleTopology().GetSegments()); diff != "" {
			t.Error(diff)
		}
		if req.GetVolumeCapabilities() != nil {
			t.Error("capabilities were named")
		}
		req.Parameters["name"] = "scribbled"
		class, err := r.c.cfg.Classes.Lister().Get("c")
		if err != nil || class.Parameters["name"] != "c" {
			t.Errorf("the cached class is %v, %v", class, err)
		}
	})
}

func TestADriverWithoutTopologyHasOnePlace(t *testing.T) {
	bubble(t, func(r *rig) {
		r.tune = func(cfg *Config) { cfg.Segments = topology.Fixed{{}} }
		r.class("c", nil)
		r.driver.room[""] = 9
		r.start()
		r.expect("c 9")
		if obj := r.api.objects()[0]; obj.NodeTopology == nil || len(obj.NodeTopology.MatchLabels) > 0 {
			t.Errorf("the object is for %v, want all nodes", obj.NodeTopology)
		}
		if r.driver.last.GetAccessibleTopology() != nil {
			t.Error("a place was named")
		}
		r.restart()
		r.expect("c 9")
		if n := r.api.writes(); n != 1 {
			t.Errorf("%d writes", n)
		}
		// A volume is there, wherever its affinity says.
		before := r.driver.calledAtAll()
		r.pass(2 * time.Second)
		r.c.Refresh("c", &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{}})
		r.pass(2 * time.Second)
		if r.driver.calledAtAll() == before {
			t.Error("it was not looked at")
		}
	})
}

func TestOnlyAChangeIsWritten(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.driver.room["zone=a"] = 1
		r.start()
		r.pass(time.Hour)
		if n := r.driver.called("zone=a c"); n < 50 || n > 76 {
			t.Errorf("asked %d times in an hour", n)
		}
		if n := r.api.writes(); n != 1 {
			t.Errorf("%d writes of the same", n)
		}
		for _, step := range []struct {
			do   func(*fakeDriver)
			want string
		}{
			{func(d *fakeDriver) { d.room["zone=a"] = 2 }, "zone=a c 2"},
			{func(d *fakeDriver) { d.largest["zone=a"] = 1 }, "zone=a c 2/1"},
			{func(d *fakeDriver) { d.largest["zone=a"] = 0 }, "zone=a c 2/0"},
			{func(d *fakeDriver) { delete(d.largest, "zone=a") }, "zone=a c 2"},
			{func(d *fakeDriver) { d.room["zone=a"] = 0 }, "zone=a c 0"},
		} {
			before := r.api.writes()
			r.driver.set(step.do)
			r.pass(10 * time.Minute)
			r.expect(step.want)
			if n := r.api.writes() - before; n != 1 {
				t.Errorf("%s: %d writes", step.want, n)
			}
		}
	})
}

// Not knowing leaves the last word; and the driver is not pressed.
func TestAFailedLookLeavesTheObject(t *testing.T) {
	for name, answer := range map[string]func() (*csi.GetCapacityResponse, error){
		"an error":        func() (*csi.GetCapacityResponse, error) { return nil, errDriver },
		"nothing":         func() (*csi.GetCapacityResponse, error) { return nil, nil },
		"a negative size": func() (*csi.GetCapacityResponse, error) { return &csi.GetCapacityResponse{AvailableCapacity: -1}, nil },
		"a negative largest": func() (*csi.GetCapacityResponse, error) {
			return &csi.GetCapacityResponse{AvailableCapacity: 3, MaximumVolumeSize: wrapperspb.Int64(-3)}, nil
		},
		"a panic": func() (*csi.GetCapacityResponse, error) { panic("oh") },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.places.set(nil, "zone=a", "zone=b")
				r.class("c", nil)
				r.driver.room = map[string]int64{"zone=a": 1, "zone=b": 1}
				r.start()
				r.driver.set(func(d *fakeDriver) {
					d.answer = func(_ context.Context, segment, _ string, _ int) (*csi.GetCapacityResponse, error) {
						if segment == "zone=a" {
							return answer()
						}
						return &csi.GetCapacityResponse{AvailableCapacity: 2}, nil
					}
				})
				r.pass(2 * time.Minute)
				r.expect("zone=a c 1", "zone=b c 2")
				r.expectMetric("ha_sidecar_capacity_failing", 1)
				if name == "a panic" {
					if r.metric("ha_sidecar_capacity_panics_total") == 0 {
						t.Error("the panic was not counted")
					}
				} else if r.metric("ha_sidecar_capacity_lookups_total{result=error}") == 0 {
					t.Error("the failure was not counted")
				}
				before := r.driver.called("zone=a c")
				r.pass(time.Hour)
				if n := r.driver.called("zone=a c") - before; n > 16 {
					t.Errorf("a failing item was looked at %d times in an hour", n)
				}
				r.driver.set(func(d *fakeDriver) { d.answer = nil; d.room["zone=a"] = 4 })
				r.pass(7 * time.Minute)
				r.expect("zone=a c 4", "zone=b c 1")
				r.expectMetric("ha_sidecar_capacity_failing", 0)
			})
		})
	}
}

// pull/688: a call that hangs is ended, and holds up the others no longer.
func TestAHangingCallIsEnded(t *testing.T) {
	bubble(t, func(r *rig) {
		r.tune = func(cfg *Config) { cfg.Timeout = 5 * time.Second }
		r.places.set(nil, "zone=a", "zone=b", "zone=c")
		r.class("c", nil)
		r.driver.answer = func(ctx context.Context, segment, _ string, _ int) (*csi.GetCapacityResponse, error) {
			if segment == "zone=b" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return &csi.GetCapacityResponse{AvailableCapacity: 1}, nil
		}
		r.start()
		r.pass(5 * time.Second)
		r.expect("zone=a c 1", "zone=c c 1")
		r.stop() // and a stop does not wait for it
	})
}

func TestAStopEndsACall(t *testing.T) {
	bubble(t, func(r *rig) {
		r.tune = func(cfg *Config) { cfg.Timeout = time.Hour }
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.driver.answer = func(ctx context.Context, _, _ string, _ int) (*csi.GetCapacityResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		r.start()
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
	})
}

func TestWhatNobodyWantsIsDeleted(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a", "zone=b")
		r.class("one", nil)
		r.class("two", nil)
		r.start()
		r.expect("zone=a one 0", "zone=a two 0", "zone=b one 0", "zone=b two 0")
		r.noClass("two")
		r.pass(time.Second)
		r.expect("zone=a one 0", "zone=b one 0")
		r.places.set(nil, "zone=b", "zone=c")
		r.pass(time.Second)
		r.expect("zone=b one 0", "zone=c one 0")
		before := r.api.writes()
		r.places.set(errors.New("not now"))
		r.pass(10 * time.Minute)
		r.expect("zone=b one 0", "zone=c one 0")
		if n := r.api.writes() - before; n > 0 {
			t.Errorf("%d writes while nothing was known", n)
		}
		r.places.set(nil)
		r.pass(5 * time.Second)
		r.expect()
		r.expectMetric("csistoragecapacities_desired_goal", 0)
		calls := r.driver.calledAtAll()
		r.pass(time.Hour)
		if n := r.driver.calledAtAll() - calls; n > 0 {
			t.Errorf("asked %d times for places that are gone", n)
		}
		r.places.set(nil, "zone=b")
		r.pass(time.Second)
		r.expect("zone=b one 0")
	})
}

func TestAClassThatComesAgainIsAnotherClass(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.driver.answer = func(_ context.Context, _, class string, _ int) (*csi.GetCapacityResponse, error) {
			if class == "c" {
				return nil, errDriver
			}
			return &csi.GetCapacityResponse{AvailableCapacity: 5}, nil
		}
		r.start()
		r.pass(time.Hour) // deep in backoff
		r.noClass("c")
		r.class("c", func(c *storagev1.StorageClass) { c.UID = "second"; c.Parameters["name"] = "better" })
		r.pass(time.Second)
		r.expect("zone=a c 5")
		// And one that goes to another driver takes its objects with it.
		r.noClass("c")
		r.class("c", func(c *storagev1.StorageClass) { c.UID = "third"; c.Provisioner = "other.example.com" })
		r.pass(time.Second)
		r.expect()
	})
}

func object(segment, class, driver, managedBy string) *storagev1.CSIStorageCapacity {
	return &storagev1.CSIStorageCapacity{
		ObjectMeta:       metav1.ObjectMeta{GenerateName: "csisc-", Namespace: namespace, Labels: map[string]string{LabelDriver: driver, LabelManagedBy: managedBy}},
		StorageClassName: class, NodeTopology: at(segment).NodeSelector(), Capacity: quantity(1),
	}
}

func TestOnlyOurObjectsAreTouched(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		var kept []types.UID
		for _, o := range []*storagev1.CSIStorageCapacity{
			object("zone=a", "c", "other.example.com", ManagedByCentral),
			object("zone=a", "c", driverName, ManagedBy("n1")),
			object("zone=z", "c", driverName, "somebody"),
			{ObjectMeta: metav1.ObjectMeta{GenerateName: "x-", Namespace: namespace}, StorageClassName: "gone", Capacity: quantity(1)},
		} {
			kept = append(kept, r.api.add(o).UID)
		}
		elsewhere := object("zone=z", "c", driverName, ManagedByCentral)
		elsewhere.Namespace = "elsewhere"
		kept = append(kept, r.api.add(elsewhere).UID)
		r.start()
		// And such as come later.
		kept = append(kept, r.api.add(object("zone=a", "c", driverName, ManagedBy("n2"))).UID)
		r.pass(time.Hour)
		left := map[types.UID]bool{}
		for _, o := range r.api.objects() {
			left[o.UID] = true
		}
		for _, uid := range kept {
			if !left[uid] {
				t.Errorf("object %s was deleted", uid)
			}
		}
		if len(left) != len(kept)+1 {
			t.Errorf("%d objects, want one more than %d", len(left), len(kept))
		}
	})
}

func TestObjectsOfAFormerProcessAreTakenOver(t *testing.T) {
	bubble(t, func(r *rig) {
		owner := &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "new", UID: "new"}
		r.tune = func(cfg *Config) { cfg.Owner = owner }
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		old := object("zone=a", "c", driverName, ManagedByCentral)
		old.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "old", UID: "old"}}
		first := r.api.add(old)
		younger := object("zone=a", "c", driverName, ManagedByCentral)
		younger.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Second))
		r.api.add(younger)
		r.api.add(object("zone=gone", "c", driverName, ManagedByCentral))
		r.api.add(object("zone=a", "gone", driverName, ManagedByCentral))
		stray := object("zone=a", "c", driverName, ManagedByCentral)
		stray.NodeTopology.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "x", Operator: metav1.LabelSelectorOpExists}}
		r.api.add(stray)
		nowhere := object("zone=a", "c", driverName, ManagedByCentral)
		nowhere.NodeTopology = nil
		r.api.add(nowhere)
		r.driver.room["zone=a"] = 1
		r.start()
		r.expect("zone=a c 1")
		if got := r.api.objects()[0]; got.UID != first.UID || len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != "new" {
			t.Errorf("%s of %v is left", got.UID, got.OwnerReferences)
		}
		if n := r.api.count("create"); n > 0 {
			t.Errorf("%d created", n)
		}
		writes := r.api.writes()
		r.restart()
		r.pass(10 * time.Minute)
		if n := r.api.writes() - writes; n > 0 {
			t.Errorf("%d writes of a process that had nothing to change", n)
		}
	})
}

func TestWhatAPersonDeletesOrAddsIsPutRight(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.driver.room["zone=a"] = 3
		r.start()
		must(r.api.Tracker().Delete(capacities, namespace, r.api.objects()[0].Name))
		r.pass(time.Second)
		r.expect("zone=a c 3")
		r.pass(time.Second)
		r.api.add(object("zone=a", "c", driverName, ManagedByCentral))
		r.api.add(object("zone=b", "c", driverName, ManagedByCentral))
		r.pass(2 * time.Second)
		r.expect("zone=a c 3")
		edited := r.api.objects()[0]
		edited.Capacity = quantity(99)
		r.api.add(&edited)
		r.pass(2 * time.Minute)
		r.expect("zone=a c 3")
	})
}

// A reply that is lost may have created the object.
func TestALostReplyLeavesOneObject(t *testing.T) {
	for _, verb := range []string{"create", "patch", "delete"} {
		t.Run(verb, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.places.set(nil, "zone=a", "zone=b")
				r.class("c", nil)
				lost := 0
				r.api.setFault(func(v string) (before, after error) {
					if v == verb && lost < 3 {
						lost++
						return nil, errors.New("connection reset")
					}
					return nil, nil
				})
				r.start()
				r.driver.set(func(d *fakeDriver) { d.room["zone=a"] = 8 })
				r.places.set(nil, "zone=a")
				r.pass(10 * time.Minute)
				r.expect("zone=a c 8")
				if lost == 0 {
					t.Error("nothing was lost")
				}
			})
		})
	}
}

// An informer that lags behind our own writes makes us neither create a second
// object nor write over a version that is past.
func TestALaggingInformerMakesNoSecondObject(t *testing.T) {
	bubble(t, func(r *rig) {
		r.api.PrependWatchReactor(capacities.Resource, clienttesting.DefaultWatchReactor(watch.NewFake(), nil))
		r.places.set(nil, "zone=a", "zone=b")
		r.class("c", nil)
		r.start()
		for bytes := range int64(5) {
			r.driver.set(func(d *fakeDriver) { d.room["zone=a"] = bytes + 1 })
			r.pass(5 * time.Minute)
			r.expect(fmt.Sprintf("zone=a c %d", bytes+1), "zone=b c 0")
		}
		r.places.set(nil, "zone=b")
		r.pass(time.Second)
		r.expect("zone=b c 0")
		if created, all := r.api.count("create"), r.api.writes(); created != 2 || all != 8 {
			t.Errorf("%d created, %d writes in all", created, all)
		}
		r.expectMetric("ha_sidecar_capacity_writes_total{result=error,verb=patch}", 0)
	})
}

func TestAConflictIsNotForced(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.start()
		conflicts := 0
		r.api.setFault(func(verb string) (before, after error) {
			if verb != "create" && conflicts < 2 {
				conflicts++
				return conflict("x"), nil
			}
			return nil, nil
		})
		r.driver.set(func(d *fakeDriver) { d.room["zone=a"] = 8 })
		r.pass(5 * time.Minute)
		r.expect("zone=a c 8")
		if conflicts != 2 {
			t.Errorf("%d conflicts", conflicts)
		}
	})
}

func TestAFollowerDoesNothing(t *testing.T) {
	bubble(t, func(r *rig) {
		leads := make(chan bool, 1)
		leads <- false
		r.tune = func(cfg *Config) {
			cfg.IsLeader = func() bool { l := <-leads; leads <- l; return l }
		}
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.api.add(object("zone=gone", "c", driverName, ManagedByCentral))
		r.start()
		r.pass(10 * time.Minute)
		if r.driver.calledAtAll() > 0 || r.api.writes() > 0 {
			t.Errorf("%d calls and %d writes", r.driver.calledAtAll(), r.api.writes())
		}
		<-leads
		leads <- true
		r.pass(10 * time.Minute)
		r.expect("zone=a c 0")
	})
}

func TestRunIsCalledOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		if err := r.c.Run(t.Context()); err == nil {
			t.Error("it ran twice")
		}
	})
}

func zone(value string) *v1.VolumeNodeAffinity {
	return topology.NodeAffinity([]*csi.Topology{{Segments: map[string]string{"zone": value}}})
}

func TestARefreshIsOfWhatIsAffected(t *testing.T) {
	bubble(t, func(r *rig) {
		// No poll comes between.
		r.tune = func(cfg *Config) { cfg.PollInterval = 10000 * time.Hour }
		r.places.set(nil, "zone=a", "zone=b")
		r.class("one", nil)
		r.class("two", nil)
		r.start()
		r.c.Refresh("nobody's", nil)
		r.pass(time.Second)
		asked := func(what string, do func(), want ...string) {
			t.Helper()
			r.pass(2 * time.Second)
			before := map[string]int{}
			all := []string{"zone=a one", "zone=a two", "zone=b one", "zone=b two"}
			for _, key := range all {
				before[key] = r.driver.called(key)
			}
			do()
			r.pass(10 * time.Millisecond)
			got := []string(nil)
			for _, key := range all {
				if r.driver.called(key) > before[key] {
					got = append(got, key)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", what, diff)
			}
		}
		asked("a volume in zone a, of whatever class", func() { r.c.Refresh("one", zone("a")) }, "zone=a one", "zone=a two")
		asked("a volume anywhere of class two", func() { r.c.Refresh("two", nil) }, "zone=a two", "zone=b two")
		asked("a volume in a place that the driver has not", func() { r.c.Refresh("one", zone("x")) })
		asked("a volume of a class without objects", func() { r.c.Refresh("x", &v1.VolumeNodeAffinity{}) })
	})
}

func TestABurstOfRefreshesIsOneLook(t *testing.T) {
	bubble(t, func(r *rig) {
		r.tune = func(cfg *Config) { cfg.PollInterval = time.Hour }
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.start()
		r.pass(time.Second)
		before := r.driver.called("zone=a c")
		for range 1000 {
			r.c.Refresh("c", zone("a"))
			r.pass(10 * time.Millisecond)
		}
		r.pass(2 * time.Second)
		if n := r.driver.called("zone=a c") - before; n < 10 || n > 12 {
			t.Errorf("%d looks for 1000 volumes in 10 seconds", n)
		}
	})
}

func TestARefreshDoesNotPressADriverThatFails(t *testing.T) {
	bubble(t, func(r *rig) {
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.driver.answer = func(context.Context, string, string, int) (*csi.GetCapacityResponse, error) { return nil, errDriver }
		r.start()
		for range 600 {
			r.c.Refresh("c", nil)
			r.pass(time.Second)
		}
		if n := r.driver.called("zone=a c"); n > 13 {
			t.Errorf("%d looks in ten minutes, each of which failed", n)
		}
	})
}

func TestARefreshOutsideOfRunIsNothing(t *testing.T) {
	bubble(t, func(r *rig) {
		cfg, factory := r.config()
		c, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		c.Refresh("c", nil)
		factory.Shutdown()
		r.registry = nil
		r.places.set(nil, "zone=a")
		r.class("c", nil)
		r.tune = func(cfg *Config) { cfg.Registry, cfg.PollInterval = nil, 10000*time.Hour }
		r.start()
		r.stop()
		r.c.Refresh("c", nil)
		r.pass(time.Minute)
		if n := r.driver.calledAtAll(); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
}

// All items begin at once; their polls do not go on so.
func TestPollsAreSpread(t *testing.T) {
	bubble(t, func(r *rig) {
		var zones []string
		for i := range 300 {
			zones = append(zones, fmt.Sprintf("zone=%d", i))
		}
		r.places.set(nil, zones...)
		r.class("c", nil)
		r.start()
		r.pass(5 * time.Minute)
		perSecond := map[int]int{}
		began := time.Time{}
		for _, times := range r.driver.times {
			if began.IsZero() {
				began = times[0]
			}
			if len(times) < 4 || len(times) > 8 {
				t.Errorf("%d looks in five minutes", len(times))
			}
			for _, at := range times[1:] {
				perSecond[int(at.Sub(began).Seconds())]++
			}
		}
		for second, n := range perSecond {
			if n > 30 { // 5 on average
				t.Errorf("%d looks in second %d", n, second)
			}
		}
	})
}
