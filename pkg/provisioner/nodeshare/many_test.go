package nodeshare

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/record"

	"github.com/ha-sidecar/ha-sidecar/pkg/provisioner"
)

// nodeDriver provisions on one node, as long as there is room.
type nodeDriver struct {
	*Sharer
	name  string
	mu    sync.Mutex
	room  int
	made  map[string]bool
	asked int
}

func (d *nodeDriver) Provision(provisioner.VolumeOptions) (*v1.PersistentVolume, error) {
	return nil, errors.New("ProvisionExt is to be asked")
}
func (d *nodeDriver) Delete(*v1.PersistentVolume) error { return errors.New("nothing is deleted") }

func (d *nodeDriver) ProvisionExt(_ context.Context, options provisioner.VolumeOptions) (*v1.PersistentVolume, provisioner.ProvisioningState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	if d.room == 0 {
		return nil, provisioner.ProvisioningReschedule, errors.New("resource exhausted")
	}
	d.room--
	d.made[options.PVC.Name] = true
	return &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: d.name + "/" + options.PVName}}}}, provisioner.ProvisioningFinished, nil
}

// crowd is many nodes, each with its own controller and informers, at one server.
type crowd struct {
	api   *api
	nodes []*nodeDriver
}

// newCrowd runs a node for each number, which is how many volumes fit there. told:
// the drivers have GET_CAPACITY.
func newCrowd(t *testing.T, a *api, rooms []int, told bool, change ...func(*Config)) *crowd {
	t.Helper()
	c := &crowd{api: a}
	stop := make(chan struct{})
	var running sync.WaitGroup
	t.Cleanup(func() {
		close(stop)
		running.Wait()
	})
	for i, room := range rooms {
		node := &nodeDriver{name: fmt.Sprintf("node-%d", i), room: room, made: map[string]bool{}}
		factory := informers.NewSharedInformerFactory(a, 0)
		cfg := Config{
			Node: node.name, Place: at(t, map[string]string{"node": node.name}), Immediate: true, Client: a,
			Classes: factory.Storage().V1().StorageClasses().Lister(),
		}
		if told {
			cfg.HasRoom = func(context.Context, *v1.PersistentVolumeClaim, *storagev1.StorageClass) (bool, error) {
				node.mu.Lock()
				defer node.mu.Unlock()
				return node.room > 0, nil
			}
		}
		for _, f := range change {
			f(&cfg)
		}
		var err error
		if node.Sharer, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		ctrl := provisioner.NewProvisionController(a, 0, driver, node, "", true, 0,
			provisioner.WithInformerFactory(factory), provisioner.WithEventRecorder(&record.FakeRecorder{}), provisioner.WithoutRetryLimit())
		factory.Start(stop)
		running.Go(func() { ctrl.Run(stop); factory.Shutdown() })
		c.nodes = append(c.nodes, node)
	}
	return c
}

// check wants each claim to have one volume, made by the node that it names.
func (c *crowd) check(t *testing.T, claims int) {
	t.Helper()
	made := map[string]string{}
	for _, node := range c.nodes {
		node.mu.Lock()
		for claim := range node.made {
			if other, twice := made[claim]; twice {
				t.Errorf("claim %s was provisioned on %s and on %s", claim, other, node.name)
			}
			made[claim] = node.name
		}
		node.mu.Unlock()
	}
	if len(made) != claims {
		t.Errorf("%d of %d claims were provisioned", len(made), claims)
	}
	for claim, node := range made {
		live, err := c.api.live("default", claim)
		if err != nil || live.Annotations[provisioner.AnnotationSelectedNode] != node {
			t.Errorf("claim %s was provisioned on %s and names %v, %v", claim, node, live.Annotations, err)
		}
		pv, err := c.api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-uid-"+claim, metav1.GetOptions{})
		if err != nil || pv.Spec.CSI.VolumeHandle != node+"/"+pv.Name {
			t.Errorf("the PersistentVolume of claim %s on %s: %v, %v", claim, node, pv, err)
		}
	}
}

// TestOfManyExactlyOneProvisions: whatever the number of nodes and claims, and
// wherever there is room, as long as there is enough in all. The nodes draw from
// two times alone, so that several try at the same instant.
func TestOfManyExactlyOneProvisions(t *testing.T) {
	coarse := func(cfg *Config) { cfg.Random = func() float64 { return float64(rand.IntN(2)) / 2 } }
	conflicts := 0
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			nodes, claims := 1+random.IntN(8), 1+random.IntN(15)
			told := random.IntN(2) == 0
			rooms := make([]int, nodes)
			for range claims + random.IntN(3) {
				rooms[random.IntN(nodes)]++
			}
			objects := []runtime.Object{newClass("fast")}
			for i := range claims {
				objects = append(objects, newClaim(fmt.Sprintf("c%d", i), "fast"))
			}
			c := newCrowd(t, newAPI(objects...), rooms, told, coarse)
			// Where the driver does not tell, each node may try each claim in vain.
			time.Sleep(30 * time.Minute)
			synctest.Wait()
			c.check(t, claims)
			asked := 0
			for _, node := range c.nodes {
				asked += node.asked
			}
			conflicts += c.api.conflicts
			t.Logf("seed %d: %d claims, rooms %v, told %v: %d calls, %d writes, %d conflicts", seed, claims, rooms, told, asked, c.api.writes, c.api.conflicts)
		})
	}
	if conflicts < 10 {
		t.Errorf("%d conflicts in all: the nodes did not compete", conflicts)
	}
}

// TestWaitingCostsNoWorker: with the default delays all claims of an empty node are
// taken within the first window, though there are more of them than workers.
func TestWaitingCostsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{newClass("fast")}
		for i := range 100 {
			objects = append(objects, newClaim(fmt.Sprintf("c%d", i), "fast"))
		}
		c := newCrowd(t, newAPI(objects...), []int{100}, true)
		time.Sleep(DefaultBaseDelay + time.Second) // and a retry
		synctest.Wait()
		c.check(t, 100)
	})
}

// TestAVolumeThatWaitedForAPod is provisioned by the node that the scheduler chose;
// where that has no room, the claim is the scheduler's again, and no node's.
func TestAVolumeThatWaitedForAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		delayed := storagev1.VolumeBindingWaitForFirstConsumer
		class := newClass("fast", func(c *storagev1.StorageClass) { c.VolumeBindingMode = &delayed })
		a := newAPI(class, newClaim("c", "fast"))
		c := newCrowd(t, a, []int{0, 1}, true)
		choose := func(node string) {
			a.change("default", "c", selectedBy(node))
			time.Sleep(time.Second)
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if a.writes > 0 {
			t.Fatal("a node took a claim that waits for a pod")
		}
		choose("node-0")
		live, err := a.live("default", "c")
		if err != nil {
			t.Fatal(err)
		}
		if node, still := live.Annotations[provisioner.AnnotationSelectedNode]; still || a.writes > 0 || c.nodes[0].asked != 1 {
			t.Errorf("the claim names %q, after %d tries and %d writes", node, c.nodes[0].asked, a.writes)
		}
		choose("node-1")
		c.check(t, 1)
	})
}

// TestAClaimThatDoesNotFitMovesOn to a node with room, though no driver tells.
func TestAClaimThatDoesNotFitMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(newClass("fast"), newClaim("c", "fast", selectedBy("node-0")))
		c := newCrowd(t, a, []int{0, 1}, false)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		c.check(t, 1)
	})
}
