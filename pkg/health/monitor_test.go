package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// scripted is a driver that says what the test wants.
type scripted struct {
	mu     sync.Mutex
	sweep  volume.Sweep
	err    error
	asked  [][]volume.Handle
	starts []time.Time
	takes  time.Duration
	busy   int
	worst  int // most sweeps under way at one time
}

func (s *scripted) Sweep(ctx context.Context, handles []volume.Handle) (volume.Sweep, error) {
	s.mu.Lock()
	s.asked = append(s.asked, handles)
	s.starts = append(s.starts, time.Now())
	s.busy++
	s.worst = max(s.worst, s.busy)
	takes := s.takes
	s.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	sweep := s.sweep
	sweep.Readings = slices.Clone(sweep.Readings)
	for i := range sweep.Readings {
		sweep.Readings[i].Started = time.Now()
		sweep.Readings[i].Source = volume.SourceController
	}
	return sweep, s.err
}

func (s *scripted) says(complete, abnormalOnly bool, readings ...volume.Reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep, s.err = volume.Sweep{Complete: complete, AbnormalOnly: abnormalOnly, Readings: readings}, nil
}

func (s *scripted) fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// rig is a Monitor on a fake API server, in a bubble of its own time.
type rig struct {
	t        *testing.T
	ctx      context.Context
	client   *fake.Clientset
	driver   *scripted
	recorder *record.FakeRecorder
	registry metrics.KubeRegistry
	monitor  *Monitor
	renewals int
}

// run starts a Monitor over objects and calls f beside it, then ends all.
func run(t *testing.T, change func(*Config), objects []runtime.Object, f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig())
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		r := &rig{
			t: t, ctx: ctx, client: fake.NewClientset(objects...), driver: &scripted{},
			recorder: record.NewFakeRecorder(100), registry: metrics.NewKubeRegistry(),
		}
		factory := informers.NewSharedInformerFactory(r.client, 0)
		leaseInformer := coordinationinformers.NewLeaseInformer(r.client, v1.NamespaceNodeLease, 0, cache.Indexers{})
		cfg := Config{
			DriverName: driver, Sweeper: r.driver, Client: r.client, Informers: factory,
			LeaseInformer: leaseInformer, Recorder: r.recorder, Registry: r.registry,
		}
		if change != nil {
			change(&cfg)
		}
		var err error
		if r.monitor, err = New(cfg); err != nil {
			t.Fatal(err)
		}
		if r.monitor.Recovered("vol", "n1") || r.monitor.Verdicts() != nil {
			t.Error("something is known before Run")
		}
		factory.Start(ctx.Done())
		var wg sync.WaitGroup
		wg.Go(func() { leaseInformer.RunWithContext(ctx) })
		wg.Go(func() {
			if err := r.monitor.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		time.Sleep(time.Second) // Caches are waited for by polling.
		synctest.Wait()
		f(r)
		cancel()
		wg.Wait()
		factory.Shutdown()
	})
}

// settle lets a moment pass, for what is under way to end: informers and their
// start take timers of their own.
func (r *rig) settle() {
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// renew has the kubelet of the node renew its Lease, at a time of its own.
func (r *rig) renew(node string) {
	r.t.Helper()
	r.renewals++
	lease := newLease(node, t0.Add(time.Duration(r.renewals)*time.Second))
	_, err := r.client.CoordinationV1().Leases(v1.NamespaceNodeLease).Update(r.ctx, lease, metav1.UpdateOptions{})
	r.must(err)
	synctest.Wait()
}

func (r *rig) setPod(pod *v1.Pod) {
	r.t.Helper()
	_, err := r.client.CoreV1().Pods(pod.Namespace).UpdateStatus(r.ctx, pod, metav1.UpdateOptions{})
	r.must(err)
	synctest.Wait()
}

func (r *rig) claim(pv string) *v1.PersistentVolumeClaim {
	r.t.Helper()
	claim, err := r.client.CoreV1().PersistentVolumeClaims("default").Get(r.ctx, "claim-"+pv, metav1.GetOptions{})
	r.must(err)
	return claim
}

// events drains the events so far.
func (r *rig) events() []string {
	var list []string
	for {
		select {
		case e := <-r.recorder.Events:
			list = append(list, e)
		default:
			return list
		}
	}
}

func (r *rig) wantEvents(parts ...string) {
	r.t.Helper()
	got := r.events()
	if len(got) != len(parts) {
		r.t.Fatalf("events %q, want %q", got, parts)
	}
	for i := range parts {
		if !strings.Contains(got[i], parts[i]) {
			r.t.Fatalf("event %q, want %q", got[i], parts[i])
		}
	}
}

// verdicts renders the verdicts on one line each.
func (r *rig) verdicts() []string {
	var list []string
	for _, v := range r.monitor.Verdicts() {
		list = append(list, fmt.Sprintf("%s@%s %s confirmed=%v suspect=%v", v.Key.Handle, v.Key.Node, v.State, v.Confirmed, v.Suspect()))
	}
	return list
}

func (r *rig) wantVerdicts(want ...string) {
	r.t.Helper()
	if got := r.verdicts(); !slices.Equal(got, want) {
		r.t.Fatalf("verdicts %q, want %q", got, want)
	}
}

func (r *rig) wantMetric(want string) {
	r.t.Helper()
	name, _, _ := strings.Cut(want, " ")
	name, _, _ = strings.Cut(name, "{")
	families, err := r.registry.Gather()
	r.must(err)
	var text strings.Builder
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				labels := []string{}
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
				fmt.Fprintf(&text, "%s{%s} %v\n", name, strings.Join(labels, ","), m.GetCounter().GetValue()+m.GetGauge().GetValue())
			}
		}
	}
	if !strings.Contains(text.String(), want+"\n") {
		r.t.Fatalf("metrics:\n%swant %s", text.String(), want)
	}
}

func newLease(node string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: node},
		Spec:       coordinationv1.LeaseSpec{RenewTime: ptr.To(metav1.NewMicroTime(renewed))},
	}
}

func newVA(pv, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "va-" + pv + "-" + node},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driver, NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(pv)},
		},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}
}

// world is a volume "vol" on PersistentVolume "pv", used by pod "p" on node n1.
func world(more ...runtime.Object) []runtime.Object {
	pod := newPod("p", "n1", "pv")
	pod.Status.VolumeHealth = nil
	return append([]runtime.Object{newPV("pv", "vol"), newClaim("pv"), pod, newVA("pv", "n1"), newLease("n1", t0), newCSINode("n1")}, more...)
}

func TestPodStatusIsConfirmedInTime(t *testing.T) {
	run(t, nil, world(), func(r *rig) {
		r.driver.says(true, true)
		<-r.monitor.Changed() // The first look.
		r.renew("n1")
		signal := time.Now()
		r.setPod(newPod("p", "n1", "pv", pathsLost))
		r.wantVerdicts("vol@n1 Inaccessible confirmed=false suspect=false")
		r.wantEvents()
		<-r.monitor.Changed()
		<-r.monitor.Changed()
		if beyond := time.Since(signal) - DefaultConfirmAfter; beyond != 0 {
			t.Errorf("confirmed %v beyond the configured age", beyond)
		}
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=false")
		r.wantEvents("Warning VolumeConditionAbnormal The volume is inaccessible from node n1 (PathsLost): no path.")
		if r.monitor.Recovered("vol", "n1") || !r.monitor.Recovered("vol", "n2") {
			t.Error("recovered the wrong way round")
		}
		r.wantMetric("ha_sidecar_volumes{state=Inaccessible} 1")
		r.wantMetric("ha_sidecar_health_checks_total{result=read} 1")

		r.setPod(newPod("p", "n1", "pv"))
		r.wantVerdicts()
		r.wantEvents("Normal VolumeConditionNormal The volume is healthy again from node n1")
		if !r.monitor.Recovered("vol", "n1") {
			t.Error("not recovered")
		}
		if r.claim("pv").Status.HealthStatus != nil {
			t.Error("the claim's status was written for what a kubelet says")
		}
	})
}

func TestDeadKubeletConfirmsNothing(t *testing.T) {
	run(t, nil, world(), func(r *rig) {
		r.setPod(newPod("p", "n1", "pv", pathsLost))
		time.Sleep(time.Minute)
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=false suspect=false")
		r.wantEvents("Lease is not being renewed")
		r.wantMetric("ha_sidecar_health_unconfirmed{waiting_for=lease} 1")
		r.wantMetric("ha_sidecar_health_checks_total{result=lease-stale} 1")
		if s := r.monitor.Statuses(); len(s) != 1 || s[0].Waiting != WaitingForLease {
			t.Fatalf("statuses %+v", s)
		}
		r.renew("n1")
		r.settle()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=false")
		r.wantEvents("Pods that use it on this node may be moved")
	})
}

// The cache may lag behind: what the API server says now counts.
func TestLiveReadMustAgree(t *testing.T) {
	for name, live := range map[string]clienttesting.ReactionFunc{
		"healthy": func(clienttesting.Action) (bool, runtime.Object, error) { return true, newPod("p", "n1", "pv"), nil },
		"gone": func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(v1.Resource("pods"), "p")
		},
		"another pod": func(clienttesting.Action) (bool, runtime.Object, error) {
			pod := newPod("p", "n1", "pv", pathsLost)
			pod.UID = "another"
			return true, pod, nil
		},
		"moved": func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, newPod("p", "n2", "pv", pathsLost), nil
		},
		"error": func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, nil, world(), func(r *rig) {
				r.client.PrependReactor("get", "pods", live)
				r.setPod(newPod("p", "n1", "pv", pathsLost))
				for range 6 {
					r.renew("n1")
					time.Sleep(DefaultConfirmAfter)
				}
				synctest.Wait()
				r.wantVerdicts("vol@n1 Inaccessible confirmed=false suspect=false")
			})
		})
	}
}

// The Lease may grow stale while the pod is being read.
func TestLeaseIsLookedAtAfterTheRead(t *testing.T) {
	short := func(c *Config) { c.LeaseGrace = time.Second }
	run(t, short, world(), func(r *rig) {
		r.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(2 * time.Second)
			return false, nil, nil
		})
		r.setPod(newPod("p", "n1", "pv", pathsLost))
		time.Sleep(DefaultConfirmAfter - time.Millisecond)
		r.renew("n1")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		r.wantMetric("ha_sidecar_health_checks_total{result=read} 1")
		r.wantVerdicts("vol@n1 Inaccessible confirmed=false suspect=false")
		r.wantMetric("ha_sidecar_health_unconfirmed{waiting_for=lease} 1")
	})
}

func TestVolumeMovedAwayLeavesItsNodeSuspect(t *testing.T) {
	run(t, nil, world(), func(r *rig) {
		r.renew("n1")
		r.setPod(newPod("p", "n1", "pv", pathsLost))
		time.Sleep(DefaultConfirmAfter)
		synctest.Wait()
		silent := newPod("p", "n1", "pv", pathsLost)
		silent.Status.VolumeHealth = nil
		r.setPod(silent)
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=false")
		r.must(r.client.CoreV1().Pods("default").Delete(r.ctx, "p", metav1.DeleteOptions{}))
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=true")
		r.must(r.client.StorageV1().VolumeAttachments().Delete(r.ctx, "va-pv-n1", metav1.DeleteOptions{}))
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=true")
		if r.monitor.Recovered("vol", "n1") {
			t.Error("recovered while suspect")
		}
		r.events()
		time.Sleep(DefaultSuspectFor)
		synctest.Wait()
		r.wantVerdicts()
		r.wantEvents("no longer suspected to be inaccessible from node n1")
	})
}

// TestFinishedPodSpeaksNoMore: its object may stay for long, and its status with
// it, but it uses the volume no more.
func TestFinishedPodSpeaksNoMore(t *testing.T) {
	run(t, nil, world(), func(r *rig) {
		pod := newPod("p", "n1", "pv", pathsLost)
		r.renew("n1")
		r.setPod(pod.DeepCopy())
		time.Sleep(DefaultConfirmAfter)
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=false")
		pod.Status.Phase = v1.PodFailed
		r.setPod(pod)
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=true")
	})
}

func TestPodBeforeItsVolume(t *testing.T) {
	pod := newPod("p", "n1", "pv", pathsLost)
	run(t, nil, []runtime.Object{pod, newVA("pv", "n1")}, func(r *rig) {
		r.wantVerdicts()
		_, err := r.client.CoreV1().PersistentVolumeClaims("default").Create(r.ctx, newClaim("pv"), metav1.CreateOptions{})
		r.must(err)
		synctest.Wait()
		r.wantVerdicts()
		_, err = r.client.CoreV1().PersistentVolumes().Create(r.ctx, newPV("pv", "vol"), metav1.CreateOptions{})
		r.must(err)
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=false suspect=false")
		r.must(r.client.CoreV1().PersistentVolumes().Delete(r.ctx, "pv", metav1.DeleteOptions{}))
		synctest.Wait()
		r.wantVerdicts()
	})
}

func TestUnreachableStorageOfANode(t *testing.T) {
	run(t, nil, world(newPV("pv-2", "vol-2"), newClaim("pv-2"), newVA("pv-2", "n2"), newCSINode("n2")), func(r *rig) {
		r.renew("n1")
		set := func(node *storagev1.CSINode) {
			_, err := r.client.StorageV1().CSINodes().UpdateStatus(r.ctx, node, metav1.UpdateOptions{})
			r.must(err)
			synctest.Wait()
		}
		set(newCSINode("n1", storagev1.StorageHealthCondition{Status: storagev1.StorageUnreachable, Reason: "FabricDown"}))
		time.Sleep(DefaultConfirmAfter)
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=false")
		r.must(r.client.StorageV1().VolumeAttachments().Delete(r.ctx, "va-pv-n1", metav1.DeleteOptions{}))
		synctest.Wait()
		r.wantVerdicts("vol@n1 Inaccessible confirmed=true suspect=true")
		// The kubelet takes the entry away: all is well again, there too.
		set(newCSINode("n1"))
		r.wantVerdicts()
		r.wantEvents("inaccessible from node n1 (FabricDown)", "healthy again from node n1")
	})
}

func TestSweepsWriteTheClaim(t *testing.T) {
	down := volume.Reading{Key: volume.Key{Handle: "vol"}, Conditions: []volume.Condition{{Kind: volume.Inaccessible, Reason: "ArrayDown", Message: "no array"}}}
	foreign := volume.Reading{Key: volume.Key{Handle: "foreign"}, Conditions: down.Conditions}
	run(t, nil, world(), func(r *rig) {
		r.driver.says(true, true, down, foreign)
		time.Sleep(2 * DefaultInterval)
		synctest.Wait()
		r.wantVerdicts("vol@ Inaccessible confirmed=false suspect=false")
		status := r.claim("pv").Status.HealthStatus
		want := v1.VolumeHealthCondition{Status: "Inaccessible", Reason: "ArrayDown", Message: "no array"}
		if status == nil || len(status.HealthConditions) != 1 || status.HealthConditions[0] != want || status.LastTransitionTime.IsZero() {
			t.Fatalf("status of the claim: %+v", status)
		}
		r.wantEvents()
		time.Sleep(3 * DefaultInterval)
		synctest.Wait()
		r.wantVerdicts("vol@ Inaccessible confirmed=true suspect=false")
		r.wantEvents("Moving pods cannot help")

		// Failing sweeps change nothing.
		r.driver.fails(errors.New("away"))
		time.Sleep(10 * DefaultInterval)
		synctest.Wait()
		r.wantVerdicts("vol@ Inaccessible confirmed=true suspect=false")

		r.driver.says(true, true)
		time.Sleep(4 * DefaultInterval)
		synctest.Wait()
		r.wantVerdicts()
		r.wantEvents("healthy again")
		after := r.claim("pv").Status.HealthStatus
		if after == nil || len(after.HealthConditions) != 0 || !after.LastTransitionTime.After(status.LastTransitionTime.Time) {
			t.Fatalf("status of the claim: %+v", after)
		}
		if n := r.patches(); n != 2 {
			t.Errorf("%d writes, want one for each change", n)
		}
	})
}

func (r *rig) patches() int {
	n := 0
	for _, a := range r.client.Actions() {
		if a.Matches("patch", "persistentvolumeclaims/status") || a.GetVerb() == "patch" && a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func TestSweepLoop(t *testing.T) {
	run(t, nil, world(newPV("pv-0", "twin"), newPV("pv-1", "twin")), func(r *rig) {
		r.driver.mu.Lock()
		r.driver.takes = 2 * DefaultInterval // A slow driver is not asked twice at a time.
		r.driver.mu.Unlock()
		time.Sleep(10 * DefaultInterval)
		r.driver.mu.Lock()
		defer r.driver.mu.Unlock()
		if r.driver.worst != 1 {
			t.Errorf("%d sweeps at one time", r.driver.worst)
		}
		if first := r.driver.starts[1].Sub(r.driver.starts[0]); first < DefaultInterval || first > DefaultInterval*11/10 {
			t.Errorf("the second sweep came %v after the first", first)
		}
		if want := []volume.Handle{"twin", "vol"}; !slices.Equal(r.driver.asked[0], want) {
			t.Errorf("asked about %v, want %v", r.driver.asked[0], want)
		}
	})
}

// TestConfirmedWithin: neither the jitter of the sweeps nor a driver that takes
// its time makes a confirmation take longer than is said.
func TestConfirmedWithin(t *testing.T) {
	within := ConfirmedWithin(DefaultInterval, DefaultConfirmations, DefaultConfirmAfter)
	if least := DefaultConfirmations * DefaultInterval * 11 / 10; within != least {
		t.Errorf("confirmed within %v, want %v", within, least)
	}
	if got := ConfirmedWithin(time.Second, 1, time.Minute); got <= time.Minute {
		t.Errorf("stored statuses of an age of a minute are confirmed within %v", got)
	}
	run(t, nil, world(), func(r *rig) {
		r.driver.says(true, true, inaccessible(volume.Key{Handle: "vol", Node: "n1"}, t0))
		r.driver.mu.Lock()
		r.driver.takes = DefaultInterval / DefaultConfirmations
		r.driver.mu.Unlock()
		time.Sleep(2 * within)
		synctest.Wait()
		v := r.monitor.Verdicts()
		if len(v) != 1 || !v[0].Confirmed || v[0].ConfirmedAt.Sub(v[0].Since) > within {
			t.Fatalf("verdicts %+v", v)
		}
	})
}

func TestSweepMetrics(t *testing.T) {
	run(t, nil, world(newPV("pv-2", "vol-2"), newClaim("pv-2")), func(r *rig) {
		r.wantMetric("ha_sidecar_health_sweeps_total{result=partial} 1")
		r.wantMetric("ha_sidecar_volumes{state=Unknown} 2")
		r.driver.fails(errors.New("away"))
		time.Sleep(DefaultInterval * 11 / 10)
		synctest.Wait()
		r.wantMetric("ha_sidecar_health_sweeps_total{result=failed} 1")
		r.driver.says(true, false, volume.Reading{Key: volume.Key{Handle: "vol"}})
		time.Sleep(DefaultInterval * 11 / 10)
		synctest.Wait()
		r.wantMetric("ha_sidecar_health_sweeps_total{result=complete} 1")
		r.wantMetric(fmt.Sprintf("ha_sidecar_health_last_complete_sweep_timestamp_seconds{} %v", float64(r.driver.starts[2].Unix())))
		r.wantMetric("ha_sidecar_volumes{state=Healthy} 1")
		r.wantMetric("ha_sidecar_volumes{state=Unknown} 1")
	})
}

func TestLegacyFailover(t *testing.T) {
	legacy := func(c *Config) { c.LegacyAbnormal = LegacyFailover }
	run(t, legacy, world(), func(r *rig) {
		r.driver.says(true, false, volume.Reading{Key: volume.Key{Handle: "vol"}, Conditions: []volume.Condition{{Kind: volume.Abnormal, Reason: "R"}}})
		time.Sleep(5 * DefaultInterval)
		synctest.Wait()
		r.wantVerdicts("vol@ Degraded confirmed=true suspect=false", "vol@n1 Inaccessible confirmed=true suspect=false")
	})
}

func TestRecallsWhatWasBelievedBefore(t *testing.T) {
	claim := newClaim("pv")
	claim.Status.HealthStatus = &v1.VolumeHealthStatus{HealthConditions: []v1.VolumeHealthCondition{{Status: "Inaccessible", Reason: "ArrayDown"}}}
	start := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // Where synctest begins.
	node := func(name, value string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{volume.HoldKey(driver): value}}}
	}
	held := func(first, own time.Time) string {
		value, err := volume.HoldRecord{Time: metav1.NewTime(first), Volumes: []volume.HeldVolume{
			{PV: "first", Handle: "first"}, {PV: "pv", Handle: "vol", Time: metav1.NewTime(own)},
		}}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	hold := func(at time.Time) string { return held(at, time.Time{}) }
	objects := []runtime.Object{
		newPV("pv", "vol"), claim,
		node("recent", hold(start.Add(-4*time.Minute))), node("old", hold(start.Add(-time.Hour))),
		node("later", held(start.Add(-time.Hour), start.Add(-4*time.Minute))),
		node("ahead", hold(start.Add(time.Hour))), node("garbage", "{"), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "free"}},
	}
	run(t, nil, objects, func(r *rig) {
		r.wantVerdicts(
			"vol@ Inaccessible confirmed=false suspect=false",
			"vol@ahead Inaccessible confirmed=true suspect=true",
			"vol@later Inaccessible confirmed=true suspect=true",
			"vol@recent Inaccessible confirmed=true suspect=true",
		)
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if !r.monitor.Recovered("vol", "recent") || !r.monitor.Recovered("vol", "later") || r.monitor.Recovered("vol", "ahead") {
			t.Errorf("verdicts %q", r.verdicts())
		}
		// The driver does not name it any more: the claim is put right.
		r.driver.says(true, true)
		time.Sleep(4 * DefaultInterval)
		synctest.Wait()
		if status := r.claim("pv").Status.HealthStatus; len(status.HealthConditions) != 0 {
			t.Errorf("status of the claim: %+v", status)
		}
	})
}

func TestServerWithoutTheField(t *testing.T) {
	run(t, nil, world(), func(r *rig) {
		var upgraded atomic.Bool
		r.client.PrependReactor("patch", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !upgraded.Load(), newClaim("pv"), nil
		})
		r.driver.says(true, true, volume.Reading{Key: volume.Key{Handle: "vol"}, Conditions: []volume.Condition{{Kind: volume.Degraded, Reason: "R"}}})
		time.Sleep(supportRetry - time.Minute)
		synctest.Wait()
		if n := r.patches(); n != 1 {
			t.Errorf("%d writes, want 1", n)
		}
		r.wantMetric("ha_sidecar_health_claim_status_writes_total{result=unsupported} 1")
		upgraded.Store(true) // The server was upgraded.
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if status := r.claim("pv").Status.HealthStatus; status == nil || len(status.HealthConditions) != 1 {
			t.Errorf("status of the claim: %+v", status)
		}
	})
}

func TestClaimWriteErrors(t *testing.T) {
	for result, answer := range map[string]error{
		"forbidden": apierrors.NewForbidden(v1.Resource("persistentvolumeclaims"), "claim-pv", errors.New("no")),
		"failed":    apierrors.NewInternalError(errors.New("no")),
	} {
		t.Run(result, func(t *testing.T) {
			run(t, nil, world(), func(r *rig) {
				left := 3
				r.client.PrependReactor("patch", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
					left--
					return left >= 0, nil, answer
				})
				r.driver.says(true, true, volume.Reading{Key: volume.Key{Handle: "vol"}, Conditions: []volume.Condition{{Kind: volume.Degraded, Reason: "R"}}})
				time.Sleep(3 * DefaultInterval)
				synctest.Wait()
				r.wantMetric(fmt.Sprintf("ha_sidecar_health_claim_status_writes_total{result=%s} 3", result))
				r.wantMetric("ha_sidecar_health_claim_status_writes_total{result=written} 1")
				if status := r.claim("pv").Status.HealthStatus; status == nil {
					t.Error("not written after all")
				}
			})
		})
	}
}

func TestClaimStatusCanBeSwitchedOff(t *testing.T) {
	run(t, func(c *Config) { c.DisableClaimStatus, c.Recorder = true, nil }, world(), func(r *rig) {
		r.driver.says(true, true, volume.Reading{Key: volume.Key{Handle: "vol"}, Conditions: []volume.Condition{{Kind: volume.DataLoss, Reason: "R"}}})
		time.Sleep(5 * DefaultInterval)
		synctest.Wait()
		r.wantVerdicts("vol@ DataLoss confirmed=true suspect=false")
		if n := r.patches(); n != 0 {
			t.Errorf("%d writes", n)
		}
	})
}

func TestBurstIsConfirmedTogether(t *testing.T) {
	objects := []runtime.Object{newLease("n1", t0)}
	for i := range 100 {
		pv := fmt.Sprint("pv-", i)
		objects = append(objects, newPV(pv, volume.Handle("vol-"+fmt.Sprint(i))), newClaim(pv), newVA(pv, "n1"), newPod("p-"+fmt.Sprint(i), "n1", pv, pathsLost))
	}
	run(t, nil, objects, func(r *rig) {
		r.renew("n1")
		time.Sleep(DefaultConfirmAfter)
		synctest.Wait()
		confirmed := 0
		for _, v := range r.monitor.Verdicts() {
			if v.FailsFromNode() {
				confirmed++
			}
		}
		if confirmed != 100 {
			t.Fatalf("%d of 100 are confirmed in time", confirmed)
		}
	})
}

func TestConfigIsValidated(t *testing.T) {
	client := fake.NewClientset()
	good := func() Config {
		return Config{
			DriverName: driver, Sweeper: &scripted{}, Client: client, Informers: informers.NewSharedInformerFactory(client, 0),
			LeaseInformer: coordinationinformers.NewLeaseInformer(client, v1.NamespaceNodeLease, 0, cache.Indexers{}),
		}
	}
	m, err := New(good())
	if err != nil {
		t.Fatal(err)
	}
	if m.cfg.Interval != 30*time.Second || m.cfg.Confirmations != 3 || m.cfg.SuspectMax != time.Hour || m.cfg.LegacyAbnormal != LegacyReport {
		t.Errorf("defaults: %+v", m.cfg)
	}
	for want, change := range map[string]func(*Config){
		"DriverName is missing":    func(c *Config) { c.DriverName = "" },
		"Sweeper is missing":       func(c *Config) { c.Sweeper = nil },
		"Client is missing":        func(c *Config) { c.Client = nil },
		"Informers is missing":     func(c *Config) { c.Informers = nil },
		"LeaseInformer is missing": func(c *Config) { c.LeaseInformer = nil },
		"Interval is -1s":          func(c *Config) { c.Interval = -time.Second },
		"ConfirmAfter is -1s":      func(c *Config) { c.ConfirmAfter = -time.Second },
		"Confirmations is -1":      func(c *Config) { c.Confirmations = -1 },
		"SuspectMax 1m0s is":       func(c *Config) { c.SuspectMax = time.Minute },
		`LegacyAbnormal is "act"`:  func(c *Config) { c.LegacyAbnormal = "act" },
	} {
		c := good()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	registry := metrics.NewKubeRegistry()
	c := good()
	c.Registry = registry
	if _, err := New(c); err != nil {
		t.Fatal(err)
	}
	if _, err := New(c); err == nil {
		t.Error("the metrics were registered twice")
	}
}
