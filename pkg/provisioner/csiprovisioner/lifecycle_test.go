package csiprovisioner

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// pv reads the claim's PersistentVolume; nil if there is none.
func (c *cluster) pv() *v1.PersistentVolume {
	c.t.Helper()
	list, err := c.client.CoreV1().PersistentVolumes().List(c.t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 1 {
		c.t.Fatalf("%v, %v", list.Items, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	return &list.Items[0]
}

func (c *cluster) deleteClaim() {
	c.t.Helper()
	if err := c.client.CoreV1().PersistentVolumeClaims("ns").Delete(c.t.Context(), "data", metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// script makes each call of CreateVolume fail with the next code, and then succeed
// in the driver's way.
func (c *cluster) script(fail ...codes.Code) {
	c.driver.mu.Lock()
	defer c.driver.mu.Unlock()
	c.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		reply := c.driver.make(req)
		if len(fail) == 0 {
			return reply, nil
		}
		code := fail[0]
		fail = fail[1:]
		return nil, answered(code)
	}
}

// TestClaimThatGoesWhileItsVolumeIsMade: the volume is found, saved and so deleted,
// by this process or the next. The next one cannot know that nobody has used what is
// to be retained.
func TestClaimThatGoesWhileItsVolumeIsMade(t *testing.T) {
	for name, x := range map[string]struct {
		restart bool
		// policy of the class, saved of the PersistentVolume.
		policy, saved v1.PersistentVolumeReclaimPolicy
	}{
		"same process":                 {false, v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete},
		"next process":                 {true, v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimDelete},
		"next process, to be retained": {true, v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimRetain},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, Capabilities{CreateDelete: true}, nil, claim(), secretOf("sys", "s", canary))
				c.script(codes.DeadlineExceeded, codes.Aborted, codes.Unavailable)
				if _, err := c.client.StorageV1().StorageClasses().Create(t.Context(), class(named("s", "sys"), func(c *storagev1.StorageClass) { c.ReclaimPolicy = &x.policy }), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				c.rest(100 * time.Millisecond)
				c.wantJournal("uid-1")
				if x.restart {
					c.stop()
				}
				c.deleteClaim()
				if err := c.client.StorageV1().StorageClasses().Delete(t.Context(), "fast", metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
				if x.restart {
					c.start()
				}
				c.rest(time.Minute)
				pv := c.pv()
				if pv == nil || pv.Spec.PersistentVolumeReclaimPolicy != x.saved || pv.Spec.ClaimRef.UID != "uid-1" || pv.Annotations[annotationDeletionSecretName] != "s" {
					t.Fatalf("PersistentVolume %+v", pv)
				}
				c.wantJournal()
				for _, req := range c.driver.created {
					if !proto.Equal(req, c.driver.created[0]) {
						t.Errorf("request %v, the first was %v", req, c.driver.created[0])
					}
				}
				pv.Status.Phase = v1.VolumeReleased
				if _, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				c.rest(time.Minute)
				left := c.driver.left()
				if x.saved == v1.PersistentVolumeReclaimRetain {
					if len(left) != 1 {
						t.Errorf("left %v, want what is to be retained", left)
					}
					return
				}
				if len(left) > 0 || c.driver.deleted[0].Secrets["password"] != canary {
					t.Errorf("left %v, deleted by %v", left, c.driver.deleted)
				}
			})
		})
	}
}

// TestVolumeThatCanNeverBeSaved is gone once its claim is, and before.
func TestVolumeThatCanNeverBeSaved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Capabilities{CreateDelete: true, Topology: true}, nil, class(nil), claim())
		c.driver.mu.Lock()
		failures := 3
		c.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
			reply := c.driver.make(req)
			reply.Volume.AccessibleTopology = []*csi.Topology{{Segments: map[string]string{"no key": "x"}}}
			return reply, nil
		}
		c.driver.remove = func(*csi.DeleteVolumeRequest) error {
			if failures--; failures >= 0 {
				return answered(codes.Aborted)
			}
			return nil
		}
		c.driver.mu.Unlock()
		events := c.rest(500 * time.Millisecond)
		if len(events) == 0 || !strings.Contains(events[0], `"no key" is no label key`) {
			t.Errorf("events %q", events)
		}
		c.wantJournal("uid-1")
		c.deleteClaim()
		c.rest(10 * time.Minute)
		c.wantJournal()
		if left := c.driver.left(); len(left) > 0 || c.pv() != nil {
			t.Errorf("volumes %v and PersistentVolume %v are left", left, c.pv())
		}
		created, _ := c.driver.calls()
		c.rest(10 * time.Minute)
		if again, _ := c.driver.calls(); again != created {
			t.Errorf("%d calls after the end", again-created)
		}
	})
}

// TestDriverThatRefusesTheRequest is asked again late, or when the claim changes.
func TestDriverThatRefusesTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Capabilities{CreateDelete: true}, nil, class(nil), claim())
		c.driver.mu.Lock()
		c.driver.create = func(*csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
			return nil, answered(codes.InvalidArgument)
		}
		c.driver.mu.Unlock()
		events := c.rest(retryMax - time.Second)
		if len(events) != 1 || !strings.Contains(events[0], "the driver says InvalidArgument. Volume provisioning failed with infeasible error. Retries will be delayed") {
			t.Errorf("events %q", events)
		}
		c.wantCalls(1, 0)
		larger := claim(sized("2Gi"))
		if _, err := c.client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), larger, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.rest(100 * time.Millisecond)
		c.wantCalls(2, 0)
		c.rest(2 * retryMax)
		if created, _ := c.driver.calls(); created < 3 || created > 4 {
			t.Errorf("%d calls", created)
		}
		c.wantJournal()
	})
}

// TestNoRoomOnTheNode: the scheduler is asked for another, and the next request is
// for that.
func TestNoRoomOnTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const key = "example.com/zone"
		c := newCluster(t, Capabilities{CreateDelete: true, Topology: true}, nil, claim(selected("node-1")),
			node("node-1", map[string]string{key: "a"}), csiNode("node-1", key), node("node-2", map[string]string{key: "b"}), csiNode("node-2", key))
		c.driver.mu.Lock()
		c.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
			if req.AccessibilityRequirements.Preferred[0].Segments[key] == "a" {
				return nil, answered(codes.ResourceExhausted)
			}
			return c.driver.make(req), nil
		}
		c.driver.mu.Unlock()
		if _, err := c.client.StorageV1().StorageClasses().Create(t.Context(), class(nil, func(c *storagev1.StorageClass) {
			c.VolumeBindingMode = ptr(storagev1.VolumeBindingWaitForFirstConsumer)
		}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.rest(100 * time.Millisecond)
		live, err := c.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "data", metav1.GetOptions{})
		if err != nil || live.Annotations[provisioner.AnnotationSelectedNode] != "" {
			t.Fatalf("the claim is %v, %v", live, err)
		}
		c.wantJournal()
		live.Annotations[provisioner.AnnotationSelectedNode] = "node-2"
		if _, err := c.client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), live, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.rest(time.Minute)
		if c.pv() == nil {
			t.Error("there is no PersistentVolume")
		}
	})
}

// TestClassOfAnotherProvisionerUnderTheSameName does not take a begun volume away
// from us.
func TestClassOfAnotherProvisionerUnderTheSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Capabilities{CreateDelete: true}, nil, claim())
		c.script(codes.DeadlineExceeded)
		classes := c.client.StorageV1().StorageClasses()
		if _, err := classes.Create(t.Context(), class(nil), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.rest(100 * time.Millisecond)
		if _, err := classes.Update(t.Context(), class(nil, of("other.example.com"), func(c *storagev1.StorageClass) { c.UID = "new" }), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.rest(time.Minute)
		if pv := c.pv(); pv == nil || pv.Annotations[provisioner.AnnotationProvisionedBy] != testDriver {
			t.Errorf("PersistentVolume %+v", pv)
		}
	})
}

func TestClaimThatIsLeftToAPopulator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Capabilities{CreateDelete: true}, nil, class(nil), claim(from("pop.example.com", "Bucket", "b")))
		if events := slices.Compact(c.rest(time.Hour)); len(events) != 1 || events[0] != "Normal Provisioning Assuming an external populator will provision the volume" {
			t.Errorf("events %q", events)
		}
		c.wantCalls(0, 0)
		c.wantJournal()
	})
}

// TestClaimWhoseRecordCannotBeRead is told of it, and nothing else happens.
func TestClaimWhoseRecordCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Capabilities{CreateDelete: true}, nil)
		c.stop()
		c.journal.records["uid-1"] = `{"newer":true}`
		for _, o := range []runtime.Object{class(nil), claim()} {
			if err := c.client.Tracker().Add(o); err != nil {
				t.Fatal(err)
			}
		}
		c.start()
		events := c.rest(time.Second)
		if len(events) < 2 || !strings.HasPrefix(events[0], "Warning JournalUnreadable Records that this version cannot read, and that are kept: 1, the first under the key uid-1.") {
			t.Errorf("events %q", events)
		}
		if events = events[min(1, len(events)):]; len(events) == 0 || !strings.Contains(events[0], "this version cannot read") || !strings.Contains(events[0], "delete the key uid-1 of the journal's ConfigMap") {
			t.Errorf("events %q", events)
		}
		c.rest(time.Hour)
		c.wantCalls(0, 0)
		if c.journal.records["uid-1"] != `{"newer":true}` {
			t.Errorf("the record is %s", c.journal.records["uid-1"])
		}
	})
}

// TestPanicWhileAVolumeIsMade: this process itself finds the volume again, also when
// the claim was deleted right after. A claim for which none was begun is forgotten.
func TestPanicWhileAVolumeIsMade(t *testing.T) {
	for name, made := range map[string]bool{"in the call, once it was made": true, "before it was written down": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, Capabilities{CreateDelete: true}, nil, claim())
				var panicked atomic.Bool
				once := func() {
					if !panicked.Swap(true) {
						panic("bug")
					}
				}
				c.driver.mu.Lock()
				c.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
					reply := c.driver.make(req)
					once()
					return reply, nil
				}
				c.driver.mu.Unlock()
				if !made {
					c.journal.put = func(string, string) error {
						once()
						return nil
					}
				}
				if _, err := c.client.StorageV1().StorageClasses().Create(t.Context(), class(nil), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				c.rest(100 * time.Millisecond)
				c.deleteClaim()
				events := c.rest(2 * retryMax)
				c.wantJournal()
				pv := c.pv()
				if !made {
					c.wantCalls(0, 0)
					if pv != nil || len(events) != 1 || !strings.Contains(events[0], "no volume was begun for claim ns/data") {
						t.Errorf("PersistentVolume %v, events %q", pv, events)
					}
					if events := c.rest(time.Hour); len(events) > 0 {
						t.Errorf("the claim is still tried for: %q", events)
					}
					return
				}
				if pv == nil || pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete {
					t.Fatalf("PersistentVolume %+v", pv)
				}
				pv.Status.Phase = v1.VolumeReleased
				if _, err := c.client.CoreV1().PersistentVolumes().UpdateStatus(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				c.rest(time.Minute)
				c.wantCalls(2, 1)
				if left := c.driver.left(); len(left) > 0 {
					t.Errorf("volumes %v are left", left)
				}
			})
		})
	}
}

// TestInternalForAMistakeInTheClass (ADR 13): the request that was written down is
// repeated, whatever becomes of the class and the claim, at growing pauses, until
// the driver says something definite. A new claim takes the new class.
func TestInternalForAMistakeInTheClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, Capabilities{CreateDelete: true}, nil, claim())
		answer := codes.Internal
		var at []time.Time
		c.driver.mu.Lock()
		c.driver.create = func(req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
			if req.Parameters["type"] != "tpae" {
				return c.driver.make(req), nil
			}
			at = append(at, time.Now())
			return nil, answered(answer)
		}
		c.driver.mu.Unlock()
		classes := c.client.StorageV1().StorageClasses()
		if _, err := classes.Create(t.Context(), class(map[string]string{"type": "tpae"}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.rest(time.Second)
		if err := classes.Delete(t.Context(), "fast", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := classes.Create(t.Context(), class(map[string]string{"type": "tape"}, func(c *storagev1.StorageClass) { c.UID = "anew" }), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		second := claim(func(c *v1.PersistentVolumeClaim) { c.Name, c.UID = "second", "uid-2" })
		if _, err := c.client.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), second, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.rest(time.Minute)
		if pv := c.pv(); pv == nil || pv.Spec.ClaimRef.UID != "uid-2" {
			t.Errorf("PersistentVolume %+v, want that of the second claim", pv)
		}
		c.deleteClaim()
		c.rest(time.Hour)
		c.wantJournal("uid-1")
		if last := at[len(at)-1].Sub(at[len(at)-2]); len(at) < 15 || len(at) > 25 || last < retryMax || last > retryMax*5/4 {
			t.Errorf("asked at %v", at)
		}
		c.driver.mu.Lock()
		answer = codes.InvalidArgument
		c.driver.mu.Unlock()
		c.rest(2 * retryMax)
		c.wantJournal()
		calls := len(at)
		c.rest(time.Hour)
		if len(at) != calls {
			t.Errorf("%d calls after a definite answer", len(at)-calls)
		}
	})
}
