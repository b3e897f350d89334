package provisioner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/utils/clock"
)

// TestPanicOfTheProvisioner: it is counted, others go on, and the volume that may
// have been made is not forgotten.
func TestPanicOfTheProvisioner(t *testing.T) {
	for name, seedOnly := range map[string]bool{"ProvisionExt": false, "Provision": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
					if o.PVC.Name == "claim-1" {
						panic("a nil map")
					}
					return nfsVolume(o), ProvisioningFinished, nil
				}}
				registry := metrics.NewKubeRegistry()
				w := newWorld(t, setup{
					objects: append(oneClaim(), claim("claim-2", "uid-1-2", "class-1", ourName)), maker: m, seedOnly: seedOnly, noResync: true,
					options: []Option{WithWorkers(1), WithRegistry(registry), WithRetryInterval(time.Second, time.Minute)},
				})
				w.rest(1)
				if w.pvs()["pvc-uid-1-2"] == nil {
					t.Error("the other claim was not provisioned")
				}
				if got := w.inProgress(); len(got) != 1 || got[0] != "uid-1-1" {
					t.Errorf("in progress: %v", got)
				}
				if n, err := testutil.GetCounterMetricValue(w.ctrl.metrics.panics); err != nil || n != 1 {
					t.Errorf("%v panics counted, %v", n, err)
				}
				w.api.dropClaim("claim-1")
				m.mends()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if v := w.pvs()[savedName]; v == nil || v.Spec.PersistentVolumeReclaimPolicy != del {
					t.Errorf("saved: %+v", v)
				}
			})
		})
	}
}

// faulty is a clock that panics once when it is asked how long something took: the
// first that happens after an answer of the provisioner.
type faulty struct {
	clock.RealClock
	panicked atomic.Bool
}

func (f *faulty) Since(t time.Time) time.Duration {
	if !f.panicked.Swap(true) {
		panic("a bug")
	}
	return f.RealClock.Since(t)
}

// TestPanicOnceTheVolumeIsMade: it is not forgotten, though its claim is gone by the
// time that it is tried again.
func TestPanicOnceTheVolumeIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim(), noResync: true, options: []Option{func(ctrl *ProvisionController) { ctrl.clock = &faulty{} }}})
		w.rest(1)
		if got := w.inProgress(); len(got) != 1 || got[0] != "uid-1-1" {
			t.Errorf("in progress: %v", got)
		}
		w.api.dropClaim("claim-1")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if v := w.pvs()[savedName]; v == nil || v.Spec.PersistentVolumeReclaimPolicy != del {
			t.Errorf("saved: %+v", v)
		}
		if made, _ := w.maker.calls(); made != 2 || len(w.inProgress()) != 0 {
			t.Errorf("%d calls, in progress: %v", made, w.inProgress())
		}
	})
}

// TestPanicOfDelete: the same for the other call.
func TestPanicOfDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{remove: func(v *v1.PersistentVolume) error {
			if v.Name == "volume-1" {
				panic("a nil map")
			}
			return nil
		}}
		w := newWorld(t, setup{objects: []runtime.Object{released(), pv("volume-2", v1.VolumeReleased, del, ourName)}, maker: m, options: []Option{WithWorkers(1)}})
		w.rest(2)
		if pvs := w.pvs(); len(pvs) != 1 || pvs["volume-1"] == nil {
			t.Errorf("left: %v", pvs)
		}
		m.mends()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if len(w.pvs()) != 0 {
			t.Error("not deleted once it can be")
		}
	})
}

// TestDrain: what is under way ends and is saved; nothing new begins.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			time.Sleep(10 * time.Second)
			return nfsVolume(o), ProvisioningFinished, nil
		}}
		w := newWorld(t, setup{objects: append(oneClaim(), claim("claim-2", "uid-1-2", "class-1", ourName)), maker: m, options: []Option{WithWorkers(1)}})
		w.rest(2)
		w.ctrl.Drain()
		w.ctrl.Drain() // once more does no harm
		w.api.add(released())
		w.rest(2)
		select {
		case <-w.ended:
			t.Fatal("Run has ended, and a call is under way")
		default:
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		select {
		case <-w.ended:
		default:
			t.Error("Run has not ended with the call")
		}
		made, removed := m.calls()
		if pvs := w.pvs(); made != 1 || removed != 0 || len(pvs) != 2 {
			t.Errorf("%d made, %d deleted, PersistentVolumes %v", made, removed, pvs)
		}
		if len(w.inProgress()) != 0 {
			t.Errorf("in progress: %v", w.inProgress())
		}
	})
}

// broken is a provisioner whose call ends with its context.
type broken struct{ *maker }

func (b broken) ProvisionExt(ctx context.Context, o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
	_, _, _ = b.maker.ProvisionExt(ctx, o)
	<-ctx.Done()
	return nil, ProvisioningInBackground, ctx.Err()
}

// TestContextEnds: a call under way is broken off, and is in progress.
func TestContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{objects: oneClaim(), wrap: func(m *maker) Provisioner { return broken{m} }})
		w.rest(2)
		w.stop()
		synctest.Wait()
		select {
		case <-w.ended:
		default:
			t.Error("Run has not ended")
		}
		if len(w.inProgress()) != 1 || len(w.maker.settledOf()) != 0 {
			t.Errorf("in progress %v, settled %v", w.inProgress(), w.maker.settledOf())
		}
	})
}

// TestInformersNeverSync: nothing is done without having seen all, and the end is
// not kept waiting.
func TestInformersNeverSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, m := fake.NewClientset(oneClaim()...), &maker{}
		ctrl := NewProvisionController(client, 0, ourName, m, "", true, 0, WithInformerFactory(informers.NewSharedInformerFactory(client, 0)))
		ended := make(chan error, 1)
		go func() { ended <- ctrl.RunContext(t.Context()) }()
		time.Sleep(time.Minute)
		if made, _ := m.calls(); made != 0 {
			t.Error("provisioned without having seen the claims")
		}
		ctrl.Drain()
		time.Sleep(time.Second)
		synctest.Wait()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("Run has not ended")
		}
	})
}

// TestArguments: what is wrong with them is told by RunContext, all at once.
func TestArguments(t *testing.T) {
	client := fake.NewClientset()
	for name, c := range map[string]struct {
		ctrl *ProvisionController
		want string
	}{
		"no name":         {NewProvisionController(client, 0, "", &maker{}, server, true, 0), "provisionerName must not be empty"},
		"no client":       {NewProvisionController(nil, 0, ourName, &maker{}, server, true, 0), "client and provisioner must be given"},
		"no provisioner":  {NewProvisionController(client, 0, ourName, nil, server, true, 0), "client and provisioner must be given"},
		"version":         {NewProvisionController(client, 0, ourName, &maker{}, "latest", true, 0), `serverGitVersion "latest"`},
		"resync":          {NewProvisionController(client, -1, ourName, &maker{}, server, true, 0), "resyncPeriod not negative"},
		"workers":         {NewProvisionController(client, 0, ourName, &maker{}, server, true, 0, WithWorkers(0)), "must be positive"},
		"timeout":         {NewProvisionController(client, 0, ourName, &maker{}, server, true, 0, WithTimeout(0)), "must be positive"},
		"pauses":          {NewProvisionController(client, 0, ourName, &maker{}, server, true, 0, WithRetryInterval(2, 1)), "must be positive and at most the longest"},
		"two of them":     {NewProvisionController(client, 0, "", &maker{}, "latest", true, 0), "provisionerName must not be empty"},
		"two of them too": {NewProvisionController(client, 0, "", &maker{}, "latest", true, 0), `serverGitVersion "latest"`},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.ctrl.RunContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			c.ctrl.Run(make(chan struct{})) // logs it, and returns
		})
	}
}

// TestRunTwice is refused.
func TestRunTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setup{})
		w.rest(1)
		if err := w.ctrl.RunContext(t.Context()); err == nil || !strings.Contains(err.Error(), "twice") {
			t.Errorf("error %v", err)
		}
	})
}

// TestMetricsRegisteredTwice: a name that is taken keeps it from running.
func TestMetricsRegisteredTwice(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	for i := range 2 {
		ctrl := NewProvisionController(fake.NewClientset(), 0, ourName, &maker{}, server, true, 0, WithRegistry(registry))
		if (ctrl.mistaken != nil) != (i == 1) {
			t.Errorf("controller %d: %v", i, ctrl.mistaken)
		}
	}
}

// TestSharedInformers: the caller starts them, they are not stopped with Run, and
// our handlers are taken back.
func TestSharedInformers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(oneClaim()...)
		factory := informers.NewSharedInformerFactory(client, 0)
		m := &maker{}
		ctrl := NewProvisionController(client, 0, ourName, m, "", true, 0, WithInformerFactory(factory), WithVolumeName(func(c *v1.PersistentVolumeClaim) string { return "vol-" + c.Name }))
		stop := make(chan struct{})
		defer factory.Shutdown()
		defer close(stop)
		factory.Start(stop)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			ctrl.Run(ctx.Done())
		}()
		time.Sleep(time.Second)
		synctest.Wait()
		if asked := m.asked(); len(asked) != 1 || asked[0].PVName != "vol-claim-1" {
			t.Errorf("asked for %+v", asked)
		}
		list, err := client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || !strings.HasPrefix(list.Items[0].Source.Component, ourName+" ") {
			t.Errorf("events of our own recorder: %+v, %v", list.Items, err)
		}
		cancel()
		<-ended
		if err := client.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "claim-1", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := len(ctrl.claimInformer.GetStore().List()); got != 0 {
			t.Errorf("%d claims in the shared informer", got)
		}
	})
}

// TestBurst (external-provisioner 68, 211): a thousand claims are provisioned once
// each.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 400
		objects := []runtime.Object{storageClass("class-1", ourName)}
		for i := range n {
			objects = append(objects, claim(fmt.Sprintf("claim-%d", i), fmt.Sprintf("uid-%d", i), "class-1", ourName))
		}
		var now, most atomic.Int32
		m := &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			time.Sleep(100 * time.Millisecond)
			return nfsVolume(o), ProvisioningFinished, nil
		}}
		w := newWorld(t, setup{objects: objects, maker: m, noResync: true, options: []Option{WithWorkers(10)}})
		time.Sleep(5 * time.Second) // ten at once, ten a second each
		synctest.Wait()
		if made, removed := m.calls(); made != n || removed != 0 || len(w.pvs()) != n || most.Load() != 10 {
			t.Errorf("%d made, %d deleted, %d saved, %d at once", made, removed, len(w.pvs()), most.Load())
		}
		if len(m.settledOf()) != n || len(w.inProgress()) != 0 {
			t.Errorf("%d settled, %d in progress", len(m.settledOf()), len(w.inProgress()))
		}
	})
}

// TestOneClaimBlocks: others are not delayed by it, nor are deletions.
func TestOneClaimBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &maker{provision: func(o VolumeOptions) (*v1.PersistentVolume, ProvisioningState, error) {
			if o.PVC.Name == "claim-1" {
				time.Sleep(time.Hour)
				return nil, ProvisioningInBackground, errors.New("late")
			}
			return nfsVolume(o), ProvisioningFinished, nil
		}}
		w := newWorld(t, setup{objects: append(oneClaim(), claim("claim-2", "uid-1-2", "class-1", ourName), released(claimed("gone"))), maker: m, options: []Option{WithWorkers(2)}})
		w.rest(2)
		w.api.add(claim("claim-3", "uid-1-3", "class-1", ourName))
		w.rest(1)
		pvs := w.pvs()
		if len(pvs) != 2 || pvs["pvc-uid-1-2"] == nil || pvs["pvc-uid-1-3"] == nil {
			t.Errorf("PersistentVolumes: %v", pvs)
		}
		time.Sleep(2 * time.Hour)
	})
}

// TestWhatTheProvisionerReadsIsWaitedFor: a node that was not heard of yet must not
// pass for one that is gone.
func TestWhatTheProvisionerReadsIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var heard atomic.Bool
		w := newWorld(t, setup{objects: oneClaim(), options: []Option{WithSynced(heard.Load)}})
		w.rest(20)
		if made, _ := w.maker.calls(); made != 0 {
			t.Error("provisioned before")
		}
		heard.Store(true)
		w.rest(20)
		if made, _ := w.maker.calls(); made != 1 {
			t.Errorf("provisioned %d times after", made)
		}
	})
}
