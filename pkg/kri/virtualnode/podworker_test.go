package virtualnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

// stubPods is a PodProvider of pods that run or do not.
type stubPods struct {
	mu      sync.Mutex
	running map[types.UID]bool
	exited  map[types.UID]bool
	calls   []string
	// what the calls do; nil for success.
	onSync, onKill, onDelete func(ctx context.Context, uid types.UID) error
	cleaned                  []types.UID
}

func newStubPods() *stubPods {
	return &stubPods{running: map[types.UID]bool{}, exited: map[types.UID]bool{}}
}

func (s *stubPods) call(ctx context.Context, name string, uid types.UID, do func(context.Context, types.UID) error, then func()) error {
	s.mu.Lock()
	s.calls = append(s.calls, fmt.Sprintf("%s %s", name, uid))
	s.mu.Unlock()
	if do != nil {
		if err := do(ctx, uid); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	then()
	return nil
}

func (s *stubPods) SyncPod(ctx context.Context, pod *v1.Pod, _ *container.PodStatus, _ *kri.ReasonCache) error {
	return s.call(ctx, "sync", pod.UID, s.onSync, func() { s.running[pod.UID] = true })
}

func (s *stubPods) KillPod(ctx context.Context, pod *v1.Pod, _ container.Pod, grace *int64) error {
	return s.call(ctx, fmt.Sprint("kill", ptr.Deref(grace, -1)), pod.UID, s.onKill, func() {
		if s.running[pod.UID] {
			s.running[pod.UID], s.exited[pod.UID] = false, true
		}
	})
}

func (s *stubPods) DeletePod(ctx context.Context, pod *v1.Pod) error {
	return s.call(ctx, "delete", pod.UID, s.onDelete, func() {})
}

func (s *stubPods) CleanupPods(_ context.Context, pods []*v1.Pod, found []*container.Pod, busy map[types.UID]sets.Empty) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range found {
		_, isBusy := busy[pod.ID]
		if !isBusy && !slices.ContainsFunc(pods, func(p *v1.Pod) bool { return p.UID == pod.ID }) {
			s.cleaned = append(s.cleaned, pod.ID)
			delete(s.running, pod.ID)
			delete(s.exited, pod.ID)
		}
	}
	return nil
}

func (s *stubPods) RefreshPodStatus(*v1.Pod, *v1.PodStatus) {}

func (s *stubPods) GetPodStatus(_ context.Context, pod *v1.Pod) (*container.PodStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &container.PodStatus{ID: pod.UID}
	switch {
	case s.running[pod.UID]:
		out.ContainerStatuses = []*container.Status{{Name: "c0", State: container.StateRunning, StartedAt: t0}}
	case s.exited[pod.UID]:
		out.ContainerStatuses = []*container.Status{{Name: "c0", State: container.StateExited, StartedAt: t0, FinishedAt: t0}}
	}
	return out, nil
}

func (s *stubPods) GetPods(context.Context, bool) ([]*container.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*container.Pod
	for uid := range s.running {
		out = append(out, &container.Pod{ID: uid})
	}
	return out, nil
}

func (s *stubPods) Start(context.Context) error { return nil }
func (s *stubPods) Stop()                       {}

func (s *stubPods) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *stubPods) count(call string) int {
	n := 0
	for _, c := range s.log() {
		if c == call {
			n++
		}
	}
	return n
}

// loopRig is a podLoop that runs on a fake API.
type loopRig struct {
	t      *testing.T
	client *fake.Clientset
	pods   *stubPods
	loop   *podLoop
}

func newLoopRig(t *testing.T, pods *stubPods) *loopRig {
	t.Helper()
	r := &loopRig{t: t, client: fake.NewClientset(), pods: pods}
	// As the API server: a pod on a node is only gone with grace 0.
	cfg := &Config{Name: "n1", RootDir: t.TempDir(), Client: r.client, HousekeepingInterval: 20 * time.Millisecond}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	r.loop = newPodLoop(cfg, pods)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	// The fake API loses what happens before the watch.
	eventually(t, "pods are watched", r.loop.informer.HasSynced)
	eventually(t, "the watch is open", func() bool {
		return slices.ContainsFunc(r.client.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() == "watch" })
	})
	return r
}

func (r *loopRig) create(uid types.UID) *v1.Pod {
	r.t.Helper()
	pod := specPod(v1.RestartPolicyAlways, 0, 1)
	pod.Name, pod.UID, pod.Spec.NodeName = "p-"+string(uid), uid, "n1"
	pod, err := r.client.CoreV1().Pods("ns").Create(context.Background(), pod, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod
}

// terminate sets the deletion timestamp, as a DELETE with grace does.
func (r *loopRig) terminate(uid types.UID, grace int64) {
	r.t.Helper()
	r.change(uid, func(pod *v1.Pod) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr.To(metav1.Now()), &grace
		pod.Finalizers = []string{"kept"} // Or the fake would drop it.
	})
}

func (r *loopRig) change(uid types.UID, change func(*v1.Pod)) {
	r.t.Helper()
	pod := r.get(uid)
	change(pod)
	if err := r.client.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, "ns"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *loopRig) get(uid types.UID) *v1.Pod {
	r.t.Helper()
	pod, err := r.client.CoreV1().Pods("ns").Get(context.Background(), "p-"+string(uid), metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod.DeepCopy()
}

// forceDelete makes the object disappear.
func (r *loopRig) forceDelete(uid types.UID) {
	r.t.Helper()
	if err := r.client.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "ns", "p-"+string(uid)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *loopRig) deletes() []clienttesting.DeleteActionImpl {
	var out []clienttesting.DeleteActionImpl
	for _, a := range r.client.Actions() {
		if d, ok := a.(clienttesting.DeleteActionImpl); ok {
			out = append(out, d)
		}
	}
	return out
}

func TestPodRunsAndIsDeleted(t *testing.T) {
	r := newLoopRig(t, newStubPods())
	r.create("a")
	eventually(t, "the pod is Running", func() bool { return r.get("a").Status.Phase == v1.PodRunning })
	r.terminate("a", 7)
	eventually(t, "the object is deleted", func() bool { return len(r.deletes()) > 0 })
	d := r.deletes()[0]
	if *d.DeleteOptions.GracePeriodSeconds != 0 || *d.DeleteOptions.Preconditions.UID != "a" {
		t.Errorf("deleted with %+v", d.DeleteOptions)
	}
	var order []string
	for _, c := range r.pods.log() {
		if len(order) == 0 || order[len(order)-1] != c {
			order = append(order, c)
		}
	}
	if got := strings.Join(order, ", "); got != "sync a, kill7 a, delete a" {
		t.Errorf("calls: %s", got)
	}
	// Everything is told before the object goes.
	actions := r.client.Actions()
	i := slices.IndexFunc(actions, func(a clienttesting.Action) bool { return a.GetVerb() == "delete" })
	last, ok := actions[i-1].(clienttesting.PatchAction)
	if !ok || !strings.Contains(string(last.GetPatch()), `"phase":"Succeeded"`) || !strings.Contains(string(last.GetPatch()), `"terminated":`) {
		t.Errorf("before the delete: %v", actions[i-1])
	}
}

func TestFailuresAreRetried(t *testing.T) {
	pods := newStubPods()
	failFirst := func() func(context.Context, types.UID) error {
		failed := false
		return func(context.Context, types.UID) error {
			if !failed {
				failed = true
				return errors.New("the first time fails")
			}
			return nil
		}
	}
	pods.onSync, pods.onKill, pods.onDelete = failFirst(), failFirst(), failFirst()
	r := newLoopRig(t, pods)
	r.create("a")
	eventually(t, "the pod is Running", func() bool { return r.get("a").Status.Phase == v1.PodRunning })
	r.terminate("a", 1)
	eventually(t, "the object is deleted", func() bool { return len(r.deletes()) > 0 })
	if pods.count("kill1 a") < 2 || pods.count("delete a") < 2 {
		t.Errorf("calls: %v", pods.log())
	}
}

// TestHangingKill: the demonstration's zombie. The object goes, the pod runs on,
// and is stopped and cleaned up when the agent comes to itself.
func TestHangingKill(t *testing.T) {
	pods, release := newStubPods(), make(chan struct{})
	pods.onKill = func(ctx context.Context, _ types.UID) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r := newLoopRig(t, pods)
	r.create("a")
	eventually(t, "the pod is Running", func() bool { return r.get("a").Status.Phase == v1.PodRunning })
	r.terminate("a", 30)
	eventually(t, "the agent hangs", func() bool { return pods.count("kill30 a") == 1 })
	r.forceDelete("a")
	eventually(t, "the kill is shortened", func() bool { return pods.count("kill1 a") == 1 })
	steadily(t, "the zombie lives", func() bool {
		pods.mu.Lock()
		defer pods.mu.Unlock()
		return pods.running["a"] && len(pods.cleaned) == 0
	})
	if pods.count("delete a") != 0 {
		t.Error("unmounted under a running container")
	}
	close(release)
	eventually(t, "all is cleaned up", func() bool {
		pods.mu.Lock()
		defer pods.mu.Unlock()
		return slices.Equal(pods.cleaned, []types.UID{"a"})
	})
	if pods.count("delete a") != 1 || len(r.deletes()) != 0 {
		t.Errorf("calls: %v, deletes: %v", pods.log(), r.deletes())
	}
}

func TestSyncIsInterruptedByDeletion(t *testing.T) {
	pods := newStubPods()
	pods.onSync = func(ctx context.Context, _ types.UID) error { // Waits for an attachment that never comes.
		<-ctx.Done()
		return ctx.Err()
	}
	r := newLoopRig(t, pods)
	r.create("a")
	eventually(t, "the pod waits", func() bool { return pods.count("sync a") == 1 })
	if got := r.get("a").Status; got.Phase != v1.PodPending || got.ContainerStatuses[0].State.Waiting == nil {
		t.Errorf("status while waiting: %+v", got)
	}
	r.terminate("a", 30)
	eventually(t, "the object is deleted", func() bool { return len(r.deletes()) > 0 })
}

// TestTerminalPodIsStopped: somebody wrote Failed into a running pod's status, as
// a failover does before it deletes it.
func TestTerminalPodIsStopped(t *testing.T) {
	r := newLoopRig(t, newStubPods())
	r.create("a")
	eventually(t, "the pod is Running", func() bool { return r.get("a").Status.Phase == v1.PodRunning })
	r.change("a", func(pod *v1.Pod) {
		pod.Status.Phase, pod.Status.Reason = v1.PodFailed, "Moved"
		pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue})
	})
	eventually(t, "the pod is unmounted", func() bool { return r.pods.count("delete a") == 1 })
	eventually(t, "the end is written", func() bool { return r.get("a").Status.ContainerStatuses[0].State.Terminated != nil })
	got := r.get("a").Status
	if got.Phase != v1.PodFailed || got.Reason != "Moved" || !conditionTrue(&got, v1.DisruptionTarget) {
		t.Errorf("status: %+v", got)
	}
	syncs := r.pods.count("sync a")
	r.change("a", func(pod *v1.Pod) { pod.Labels = map[string]string{"x": "y"} })
	steadily(t, "it is not started again", func() bool { return r.pods.count("sync a") == syncs && len(r.deletes()) == 0 })
}

func TestLeftoversAreCleanedUp(t *testing.T) {
	pods := newStubPods()
	pods.running["leftover"] = true
	newLoopRig(t, pods)
	eventually(t, "the leftover is gone", func() bool {
		pods.mu.Lock()
		defer pods.mu.Unlock()
		return slices.Equal(pods.cleaned, []types.UID{"leftover"})
	})
}

func TestStatusWriteIsRetriedAndKeepsTheUID(t *testing.T) {
	r := newLoopRig(t, newStubPods())
	var mu sync.Mutex
	var patches []string
	r.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		patches = append(patches, string(a.(clienttesting.PatchAction).GetPatch()))
		return len(patches) == 1, nil, errors.New("the API is away")
	})
	r.create("a")
	eventually(t, "the pod is Running", func() bool { return r.get("a").Status.Phase == v1.PodRunning })
	mu.Lock()
	defer mu.Unlock()
	for _, p := range patches {
		if !strings.Contains(p, `"uid":"a"`) {
			t.Errorf("patch without UID: %s", p)
		}
	}
	if len(patches) > 4 {
		t.Errorf("%d writes for two states", len(patches))
	}
}

func TestGrace(t *testing.T) {
	pod := specPod(v1.RestartPolicyAlways, 0, 1)
	if got := (workerState{pod: pod}).grace(); got != nil {
		t.Errorf("not deleted: %d", *got)
	}
	pod.DeletionTimestamp = ptr.To(metav1.Now())
	for given, want := range map[int64]int64{0: 1, 1: 1, 30: 30} {
		pod.DeletionGracePeriodSeconds = &given
		if got := (workerState{pod: pod}).grace(); *got != want {
			t.Errorf("grace %d became %d", given, *got)
		}
	}
	if got := (workerState{pod: pod, gone: true}).grace(); *got != 1 {
		t.Errorf("gone: %d", *got)
	}
}
