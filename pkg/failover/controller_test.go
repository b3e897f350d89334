package failover

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
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

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// health is a source of verdicts that a test sets.
type health struct {
	mu       sync.Mutex
	verdicts map[volume.Key]volume.Verdict
	changed  chan struct{}
}

func (h *health) Verdicts() []volume.Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []volume.Verdict
	for _, v := range h.verdicts {
		out = append(out, v)
	}
	return out
}

func (h *health) Changed() <-chan struct{} { return h.changed }

// quietly sets the verdicts and tells nobody.
func (h *health) quietly(vs ...volume.Verdict) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.verdicts = map[volume.Key]volume.Verdict{}
	for _, v := range vs {
		h.verdicts[v.Key] = v
	}
}

func (h *health) set(vs ...volume.Verdict) {
	h.quietly(vs...)
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// fails is a confirmed verdict.
func fails(vol, node string) volume.Verdict {
	return volume.Verdict{
		Key: volume.Key{Handle: volume.Handle("h-" + vol), Node: node}, State: volume.StateInaccessible,
		Confirmed: true, Since: time.Now().Add(-10 * time.Second), ConfirmedAt: time.Now(),
	}
}

// recorder keeps events as one line each.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) Event(obj runtime.Object, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := obj.(*v1.ObjectReference)
	r.lines = append(r.lines, fmt.Sprintf("%s %s %s: %s", ref.Kind+"/"+ref.Name, kind, reason, message))
}

func (r *recorder) Eventf(obj runtime.Object, kind, reason, format string, args ...any) {
	r.Event(obj, kind, reason, fmt.Sprintf(format, args...))
}

func (r *recorder) AnnotatedEventf(obj runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(obj, kind, reason, format, args...)
}

// take returns the events so far and forgets them.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines := r.lines
	r.lines = nil
	return lines
}

// rig runs a controller on a world within a bubble of synctest.
type rig struct {
	t        *testing.T
	c        *Controller
	client   *fake.Clientset
	health   *health
	failing  chan string
	events   *recorder
	registry metrics.KubeRegistry
}

func run(t *testing.T, w *world, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{
			t: t, client: fake.NewClientset(w.objects()...), failing: make(chan string), events: &recorder{},
			health: &health{changed: make(chan struct{}, 1)}, registry: metrics.NewKubeRegistry(),
		}
		factory := informers.NewSharedInformerFactory(r.client, 0)
		policy := w.policy
		policy.HoldOff = 0
		var err error
		r.c, err = New(Config{
			Policy: policy, Verdicts: r.health, Informers: factory, Failing: r.failing,
			Recorder: r.events, Registry: r.registry,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())
		done := make(chan error)
		go func() { done <- r.c.Run(ctx) }()
		time.Sleep(time.Second)
		synctest.Wait()
		test(t, r)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		factory.Shutdown()
	})
}

// received takes a name off the channel, if one comes within the time.
func (r *rig) received(within time.Duration) string {
	select {
	case pv := <-r.failing:
		return pv
	case <-time.After(within):
		return ""
	}
}

// settle lets the controller look at what has changed.
func (r *rig) settle() {
	time.Sleep(50 * time.Millisecond)
	synctest.Wait()
}

func cluster(lines ...string) *world {
	w := newWorld("node n1", "node n2", "node n3", "volume data", "pod db-0 on=n1 uses=data", "attached data n1")
	return w.add(lines...)
}

func TestMoveIsFedWithinMilliseconds(t *testing.T) {
	run(t, cluster(), func(t *testing.T, r *rig) {
		begun := time.Now()
		r.health.set(fails("data", "n1"))
		if pv := r.received(time.Second); pv != "data" {
			t.Fatalf("received %q", pv)
		}
		if took := time.Since(begun); took > 5*time.Millisecond {
			t.Errorf("took %s", took)
		}
		targets, ok := r.c.Targets("data")
		if !ok || len(targets) != 1 || targets[0].Node != "n1" || targets[0].VolumeAttachmentUID != "uid-va-data-n1" ||
			len(targets[0].PodUIDs) != 1 || targets[0].PodUIDs[0] != "uid-db-0" {
			t.Fatalf("targets %+v, %t", targets, ok)
		}
		if events := r.events.take(); len(events) != 0 {
			t.Errorf("events %q", events)
		}
		// It goes out again only in case its receiver has given up.
		if pv := r.received(sendAgain - time.Second); pv != "" {
			t.Errorf("received %q again", pv)
		}
		if pv := r.received(time.Minute); pv != "data" {
			t.Errorf("received %q a minute later", pv)
		}
		if spent := r.c.memory.Spent; len(spent) > 0 {
			t.Errorf("counted again: %+v", spent)
		}
	})
}

func TestEveryFailureOfAVolumeIsFed(t *testing.T) {
	run(t, cluster(), func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		if pv := r.received(time.Second); pv != "data" {
			t.Fatalf("received %q", pv)
		}
		next := newWorld("pod db-0 on=n2 uses=data uid=second", "attached data n2")
		r.replace(next, "db-0", "va-data-n1")
		r.health.set()
		r.settle()
		r.health.set(fails("data", "n2"))
		if pv := r.received(time.Second); pv != "data" {
			t.Fatalf("the second time: received %q", pv)
		}
	})
}

// replace puts the pods and attachments of a world in place of others.
func (r *rig) replace(w *world, pod, attachment string) {
	r.t.Helper()
	ctx := r.t.Context()
	check := func(err error) {
		if err != nil {
			r.t.Fatal(err)
		}
	}
	check(r.client.CoreV1().Pods("default").Delete(ctx, pod, metav1.DeleteOptions{}))
	check(r.client.StorageV1().VolumeAttachments().Delete(ctx, attachment, metav1.DeleteOptions{}))
	for _, p := range w.pods {
		_, err := r.client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		check(err)
	}
	for _, va := range w.attachments {
		_, err := r.client.StorageV1().VolumeAttachments().Create(ctx, va, metav1.CreateOptions{})
		check(err)
	}
	r.settle()
}

func TestOneEventPerRefusal(t *testing.T) {
	run(t, cluster("pod db-0 on=n1 uses=data has=hostPath"), func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		r.settle()
		time.Sleep(10 * time.Minute)
		for range 5 {
			r.health.set(fails("data", "n1"))
			r.settle()
		}
		events := r.events.take()
		if len(events) != 1 || !strings.HasPrefix(events[0], "Pod/db-0 Warning FailoverRefused") || !strings.Contains(events[0], "hostPath /etc/localtime") {
			t.Fatalf("events %q", events)
		}
		if pv := r.received(time.Second); pv != "" {
			t.Errorf("received %q", pv)
		}
		if _, ok := r.c.Targets("data"); ok {
			t.Error("targets of a refused move")
		}
		// Another reason is news.
		r.updatePod(func(pod *v1.Pod) { pod.Labels = map[string]string{volume.ScopeKey: "disabled"} })
		if events := r.events.take(); len(events) != 1 || !strings.Contains(events[0], "OptedOut") {
			t.Fatalf("events %q", events)
		}
		answers, err := r.c.Explain("default", "db-0")
		if err != nil || len(answers) != 1 || answers[0].Action != ActionRefuse {
			t.Errorf("explained as %+v, %v", answers, err)
		}
		r.count(`
# HELP ha_sidecar_failover_decisions_total [ALPHA] Decisions on a volume of a node, counted when the action or its first reason changes.
# TYPE ha_sidecar_failover_decisions_total counter
ha_sidecar_failover_decisions_total{action="refuse",reason="OptedOut"} 1
ha_sidecar_failover_decisions_total{action="refuse",reason="UnsafeVolume"} 1
`, "ha_sidecar_failover_decisions_total")
	})
}

func (r *rig) count(want, name string) {
	r.t.Helper()
	if err := testutil.GatherAndCompare(r.registry, strings.NewReader(want), name); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) updatePod(change func(*v1.Pod)) {
	r.t.Helper()
	pods := r.client.CoreV1().Pods("default")
	pod, err := pods.Get(r.t.Context(), "db-0", metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	change(pod)
	if _, err := pods.Update(r.t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

func TestObserveShowsAndMovesNothing(t *testing.T) {
	run(t, cluster("policy mode=observe"), func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		if pv := r.received(5 * time.Minute); pv != "" {
			t.Errorf("received %q", pv)
		}
		events := r.events.take()
		if len(events) != 1 || !strings.HasPrefix(events[0], "Pod/db-0 Warning FailoverWouldMove") {
			t.Fatalf("events %q", events)
		}
		if _, ok := r.c.Targets("data"); ok {
			t.Error("targets in observe mode")
		}
		if d := r.c.Decisions(); len(d.Answers) != 1 || d.Answers[0].Action != ActionMove {
			t.Errorf("decisions %+v", d)
		}
	})
}

// TestStorm: the whole array fails, and all nodes with it.
func TestStorm(t *testing.T) {
	w := cluster("volume b", "pod b-0 on=n2 uses=b", "attached b n2", "volume c", "pod c-0 on=n3 uses=c", "attached c n3")
	run(t, w, func(t *testing.T, r *rig) {
		for range 3 {
			r.health.set(fails("data", "n1"), fails("b", "n2"), fails("c", "n3"))
			r.settle()
		}
		if pv := r.received(20 * time.Minute); pv != "" {
			t.Fatalf("received %q", pv)
		}
		events := r.events.take()
		if len(events) != 1 || !strings.HasPrefix(events[0], "CSIDriver/"+testDriver+" Warning FailoverBreakerOpen") {
			t.Fatalf("events %q", events)
		}
		r.count(`
# HELP ha_sidecar_failover_breaker_open [ALPHA] 1 while too many nodes fail and nothing is moved.
# TYPE ha_sidecar_failover_breaker_open gauge
ha_sidecar_failover_breaker_open 1
`, "ha_sidecar_failover_breaker_open")
		r.health.set(fails("data", "n1"))
		if pv := r.received(4 * time.Minute); pv != "" {
			t.Fatalf("received %q within the cooldown", pv)
		}
		if pv := r.received(2 * time.Minute); pv != "data" {
			t.Fatalf("received %q after the cooldown", pv)
		}
		r.settle()
		if events := r.events.take(); len(events) != 1 || !strings.Contains(events[0], "Normal FailoverBreakerClosed") {
			t.Errorf("events %q", events)
		}
	})
}

// TestRecoveryCancels: a name that nobody has taken yet is taken back.
func TestRecoveryCancels(t *testing.T) {
	run(t, cluster(), func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		r.settle()
		r.health.set()
		r.settle()
		if pv := r.received(5 * time.Minute); pv != "" {
			t.Errorf("received %q", pv)
		}
		if _, ok := r.c.Targets("data"); ok {
			t.Error("targets after the recovery")
		}
	})
}

// TestRecoveryWithinHoldOff: nothing is left of a failure that has passed by
// the end of the hold-off; one that has not is moved then.
func TestRecoveryWithinHoldOff(t *testing.T) {
	run(t, cluster("volume b", "pod b-0 on=n1 uses=b", "attached b n1"), func(t *testing.T, r *rig) {
		r.c.mu.Lock()
		r.c.cfg.HoldOff, r.c.started = 15*time.Second, time.Now()
		r.c.mu.Unlock()
		begun := time.Now()
		r.health.set(fails("data", "n1"), fails("b", "n1"))
		if pv := r.received(10 * time.Second); pv != "" {
			t.Fatalf("received %q within the hold-off", pv)
		}
		r.health.set(fails("b", "n1"))
		if pv := r.received(time.Minute); pv != "b" {
			t.Fatalf("received %q", pv)
		}
		if took := time.Since(begun); took < 15*time.Second || took > 15*time.Second+100*time.Millisecond {
			t.Errorf("after %s", took)
		}
	})
}

// TestPauseBetweenNameAndTargets: what was granted is asked for again, and may
// have come under a veto; once the veto is lifted the name goes out again.
func TestPauseBetweenNameAndTargets(t *testing.T) {
	run(t, cluster(), func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		if pv := r.received(time.Second); pv != "data" {
			t.Fatalf("received %q", pv)
		}
		r.pause("n1", "new cables")
		if _, ok := r.c.Targets("data"); ok {
			t.Fatal("targets on a paused node")
		}
		r.settle()
		events := r.events.take()
		if len(events) != 1 || !strings.Contains(events[0], "new cables") {
			t.Errorf("events %q", events)
		}
		r.pause("n1", "")
		if pv := r.received(time.Second); pv != "data" {
			t.Errorf("received %q after the pause", pv)
		}
	})
}

// TestDroppedNameIsSentAgain: the receiver asks in a moment of doubt that no
// look of our own falls into, and drops the name.
func TestDroppedNameIsSentAgain(t *testing.T) {
	run(t, cluster(), func(t *testing.T, r *rig) {
		verdict := fails("data", "n1")
		r.health.set(verdict)
		if pv := r.received(time.Second); pv != "data" {
			t.Fatalf("received %q", pv)
		}
		synctest.Wait()
		doubt := verdict
		doubt.Confirmed = false
		r.health.quietly(doubt)
		if _, ok := r.c.Targets("data"); ok {
			t.Fatal("targets while in doubt")
		}
		r.health.quietly(verdict)
		if pv := r.received(time.Second); pv != "data" {
			t.Errorf("received %q", pv)
		}
	})
}

func (r *rig) pause(node, reason string) {
	r.t.Helper()
	n, err := r.client.CoreV1().Nodes().Get(r.t.Context(), node, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	n.Annotations = map[string]string{volume.AnnotationPaused: reason}
	if reason == "" {
		n.Annotations = nil
	}
	if _, err := r.client.CoreV1().Nodes().Update(r.t.Context(), n, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.settle()
}

// TestSharedVolumeFailsOnTwoNodes: each node that is added is news.
func TestSharedVolumeFailsOnTwoNodes(t *testing.T) {
	w := newWorld("policy max-failing-nodes=100%", "node n1", "node n2", "node n3", "volume web modes=RWX",
		"pod a on=n1 uses=web", "pod b on=n2 uses=web", "attached web n1", "attached web n2")
	run(t, w, func(t *testing.T, r *rig) {
		nodes := func() (out []string) {
			targets, _ := r.c.Targets("web")
			for _, target := range targets {
				out = append(out, target.Node)
			}
			return out
		}
		first := fails("web", "n1")
		time.Sleep(time.Second)
		for _, step := range []struct {
			verdicts []volume.Verdict
			received string
			nodes    []string
		}{
			{[]volume.Verdict{first}, "web", []string{"n1"}},
			{[]volume.Verdict{first, fails("web", "n2")}, "web", []string{"n1", "n2"}},
			{[]volume.Verdict{fails("web", "n2")}, "", []string{"n2"}},
		} {
			r.health.set(step.verdicts...)
			if pv := r.received(time.Second); pv != step.received {
				t.Fatalf("%d verdicts: received %q", len(step.verdicts), pv)
			}
			if got := nodes(); !slices.Equal(got, step.nodes) {
				t.Fatalf("%d verdicts: targets on %v, want %v", len(step.verdicts), got, step.nodes)
			}
		}
	})
}

// TestRefusalIsToldAgain: the API server forgets events, and the refusal lasts;
// and what fails anew, long after, is news.
func TestRefusalIsToldAgain(t *testing.T) {
	run(t, cluster("pod db-0 on=n1 uses=data has=hostPath"), func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		r.settle()
		for _, want := range []int{1, 1, 1} {
			if events := r.events.take(); len(events) != want {
				t.Fatalf("events %q, want %d", events, want)
			}
			time.Sleep(announceAgain + time.Minute)
			r.settle()
		}
		r.events.take()
		for _, calm := range []time.Duration{announcementKept / 2, announcementKept + time.Minute} {
			r.health.set()
			r.settle()
			time.Sleep(calm)
			r.health.set(fails("data", "n1"))
			r.settle()
			if told := len(r.events.take()) == 1; told != (calm > announcementKept) {
				t.Errorf("after %v without failure: told %v", calm, told)
			}
		}
	})
}

// TestHandleOfAMemberIsShared: a volume that goes along has a twin which nobody
// on the node uses, so that only its handle leads to it.
func TestHandleOfAMemberIsShared(t *testing.T) {
	w := cluster("volume log", "pod db-0 on=n1 uses=data,log", "attached log n1", "volume twin handle=h-log")
	run(t, w, func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		if pv := r.received(time.Second); pv != "" {
			t.Fatalf("received %q", pv)
		}
		if a := r.c.Decisions().Answers; len(a) != 1 || a[0].Primary().Code != CodeAmbiguousHandle {
			t.Fatalf("answers %+v", a)
		}
	})
}

// TestNotDetachedIsToldWhereItHangs: no pod is left that could be told, but what
// keeps the next one from starting is named.
func TestNotDetachedIsToldWhereItHangs(t *testing.T) {
	run(t, cluster("remove pod db-0"), func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		if pv := r.received(idleGrace - time.Second); pv != "" {
			t.Fatalf("received %q", pv)
		}
		if events := r.events.take(); len(events) != 0 {
			t.Fatalf("events %q while Kubernetes may detach", events)
		}
		if pv := r.received(10 * time.Second); pv != "" {
			t.Fatalf("received %q", pv)
		}
		events := r.events.take()
		if len(events) != 1 || !strings.HasPrefix(events[0], "VolumeAttachment/") ||
			!strings.Contains(events[0], "Warning FailoverRefused") || !strings.Contains(events[0], "NotDetached: no pod on node n1") {
			t.Errorf("events %q", events)
		}
	})
}

// TestTargetsOfMany: one question, each name its own answer, and a name that is
// refused is sent again once it may go.
func TestTargetsOfMany(t *testing.T) {
	w := newWorld("policy max-failing-nodes=100%", "node n1", "node n2", "node n3",
		"volume a", "pod a-0 on=n1 uses=a", "attached a n1", "volume b", "pod b-0 on=n1 uses=b", "attached b n1")
	run(t, w, func(t *testing.T, r *rig) {
		r.health.set(fails("a", "n1"))
		if pv := r.received(time.Second); pv != "a" {
			t.Fatalf("received %q", pv)
		}
		got := r.c.TargetsOf([]string{"a", "b", "none", ""})
		if len(got) != 1 || len(got["a"]) != 1 || got["a"][0].PV != "a" {
			t.Fatalf("targets %+v", got)
		}
		r.health.set(fails("a", "n1"), fails("b", "n1"))
		got = r.c.TargetsOf([]string{"b", "a"})
		if len(got) != 2 || len(got["b"]) != 1 || got["b"][0].PV != "b" {
			t.Fatalf("targets %+v", got)
		}
	})
}

// TestOneNamePerClosure: two volumes of one pod fail; one name is enough, and
// when that volume recovers the other takes over.
func TestOneNamePerClosure(t *testing.T) {
	w := cluster("volume log", "pod db-0 on=n1 uses=data,log", "attached log n1")
	run(t, w, func(t *testing.T, r *rig) {
		one, two := fails("data", "n1"), fails("log", "n1")
		r.health.set(one, two)
		if pv := r.received(time.Second); pv != "data" {
			t.Fatalf("received %q", pv)
		}
		if pv := r.received(time.Second); pv != "" {
			t.Fatalf("received %q as well", pv)
		}
		if targets, ok := r.c.Targets("data"); !ok || len(targets) != 2 {
			t.Fatalf("targets %+v", targets)
		}
		r.health.set(two)
		if pv := r.received(time.Second); pv != "log" {
			t.Errorf("received %q", pv)
		}
	})
}

// TestSlowReaderStallsNothing: nobody takes the first name, and yet the second
// is decided and an event goes out.
func TestSlowReaderStallsNothing(t *testing.T) {
	w := cluster("volume b", "pod b-0 on=n1 uses=b has=hostPath", "attached b n1")
	run(t, w, func(t *testing.T, r *rig) {
		r.health.set(fails("data", "n1"))
		time.Sleep(time.Minute)
		r.health.set(fails("data", "n1"), fails("b", "n1"))
		r.settle()
		if events := r.events.take(); len(events) != 1 || !strings.Contains(events[0], "Pod/b-0") {
			t.Errorf("events %q", events)
		}
		if pv := r.received(time.Second); pv != "data" {
			t.Errorf("received %q", pv)
		}
	})
}

func TestNotRunning(t *testing.T) {
	w := cluster()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(w.objects()...), 0)
	h := &health{changed: make(chan struct{}, 1)}
	h.set(fails("data", "n1"))
	c, err := New(Config{Policy: w.policy, Verdicts: h, Informers: factory, Failing: make(chan string)})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Targets("data"); ok {
		t.Error("targets before Run")
	}
	if _, err := c.Explain("default", "db-0"); err == nil {
		t.Error("explained before Run")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Run(ctx); err != nil {
		t.Errorf("Run on caches that never fill: %v", err)
	}
}

func TestConfigMessages(t *testing.T) {
	_, err := New(Config{Policy: Policy{Mode: ModeEnforce}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"--fence=", "--moves-per-minute=0", "--controllers", "informers", "--failover-mode=enforce"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not name %s", err, part)
		}
	}
}
