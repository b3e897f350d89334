package virtualnode

import (
	"errors"
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

var t0 = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func specPod(policy v1.RestartPolicy, inits, containers int) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: v1.PodSpec{RestartPolicy: policy}}
	for i := range inits {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, v1.Container{Name: fmt.Sprint("i", i)})
	}
	for i := range containers {
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint("c", i)})
	}
	return pod
}

// seen builds a status: "run", "exit0", "exit1" by container.
func seen(states ...string) *container.PodStatus {
	out := &container.PodStatus{ID: "u"}
	for i := 0; i < len(states); i += 2 {
		st := &container.Status{Name: states[i], ID: "process://" + states[i] + "/0", State: container.StateRunning, StartedAt: t0}
		if code := 0; states[i+1] != "run" {
			_, _ = fmt.Sscanf(states[i+1], "exit%d", &code)
			st.State, st.ExitCode, st.FinishedAt = container.StateExited, code, t0.Add(time.Second)
		}
		out.ContainerStatuses = append(out.ContainerStatuses, st)
	}
	return out
}

func TestPlanPod(t *testing.T) {
	always, onFailure, never := v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever
	for name, tc := range map[string]struct {
		pod   *v1.Pod
		seen  *container.PodStatus
		start string
		init  bool
		done  bool
	}{
		"new":                  {specPod(always, 0, 2), seen(), "[c0 c1]", false, false},
		"running":              {specPod(always, 0, 1), seen("c0", "run"), "[]", false, false},
		"one of two ended":     {specPod(always, 0, 2), seen("c0", "exit0", "c1", "run"), "[c0]", false, false},
		"always":               {specPod(always, 0, 1), seen("c0", "exit0"), "[c0]", false, false},
		"on failure, failed":   {specPod(onFailure, 0, 1), seen("c0", "exit1"), "[c0]", false, false},
		"on failure, ended":    {specPod(onFailure, 0, 1), seen("c0", "exit0"), "[]", false, true},
		"never, failed":        {specPod(never, 0, 1), seen("c0", "exit1"), "[]", false, true},
		"never, one runs":      {specPod(never, 0, 2), seen("c0", "exit1", "c1", "run"), "[]", false, false},
		"first init":           {specPod(always, 2, 1), seen(), "[i0]", true, false},
		"init runs":            {specPod(always, 2, 1), seen("i0", "run"), "[]", false, false},
		"second init":          {specPod(always, 2, 1), seen("i0", "exit0"), "[i1]", true, false},
		"inits done":           {specPod(always, 2, 1), seen("i0", "exit0", "i1", "exit0"), "[c0]", false, false},
		"init failed":          {specPod(onFailure, 1, 1), seen("i0", "exit1"), "[i0]", true, false},
		"init failed, never":   {specPod(never, 1, 1), seen("i0", "exit1"), "[]", false, true},
		"on failure after all": {specPod(onFailure, 1, 2), seen("i0", "exit0", "c0", "exit0", "c1", "exit1"), "[c1]", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			plan := planPod(tc.pod, tc.seen)
			names := []string{}
			for _, c := range plan.Start {
				names = append(names, c.Name)
			}
			if fmt.Sprint(names) != tc.start || plan.Init != tc.init || plan.Done != tc.done {
				t.Errorf("start %v, init %v, done %v", names, plan.Init, plan.Done)
			}
		})
	}
}

func TestPodPhase(t *testing.T) {
	always, never := v1.RestartPolicyAlways, v1.RestartPolicyNever
	for name, tc := range map[string]struct {
		pod     *v1.Pod
		seen    *container.PodStatus
		stopped bool
		old     v1.PodPhase
		want    v1.PodPhase
		ready   bool
	}{
		"new":                       {specPod(always, 0, 1), seen(), false, "", v1.PodPending, false},
		"running":                   {specPod(always, 0, 1), seen("c0", "run"), false, "", v1.PodRunning, true},
		"one of two":                {specPod(always, 0, 2), seen("c0", "run"), false, "", v1.PodPending, false},
		"between restarts":          {specPod(always, 0, 1), seen("c0", "exit1"), false, "", v1.PodRunning, false},
		"init":                      {specPod(always, 1, 1), seen("i0", "run"), false, "", v1.PodPending, false},
		"stopped, success":          {specPod(never, 1, 1), seen("i0", "exit0", "c0", "exit0"), true, "", v1.PodSucceeded, false},
		"stopped, failure":          {specPod(never, 0, 2), seen("c0", "exit0", "c1", "exit1"), true, "", v1.PodFailed, false},
		"stopped before it ran":     {specPod(always, 0, 1), seen(), true, "", v1.PodFailed, false},
		"stopped in init":           {specPod(always, 1, 1), seen("i0", "exit137"), true, "", v1.PodFailed, false},
		"failed by somebody else":   {specPod(always, 0, 1), seen("c0", "run"), false, v1.PodFailed, v1.PodFailed, false},
		"a success stays a success": {specPod(always, 0, 1), seen("c0", "exit1"), true, v1.PodSucceeded, v1.PodSucceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			tc.pod.Status.Phase = tc.old
			got := podStatus(statusInput{pod: tc.pod, seen: tc.seen, reason: kri.NewReasonCache(), stopped: tc.stopped, now: t0})
			if got.Phase != tc.want || conditionTrue(&got, v1.PodReady) != tc.ready {
				t.Errorf("phase %s, ready %v", got.Phase, conditionTrue(&got, v1.PodReady))
			}
			if got.StartTime == nil || got.PodIP != "127.0.0.1" {
				t.Errorf("start %v, IP %s", got.StartTime, got.PodIP)
			}
		})
	}
}

func conditionTrue(status *v1.PodStatus, kind v1.PodConditionType) bool {
	for _, c := range status.Conditions {
		if c.Type == kind {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

func reasons(name string, err error, message string) *kri.ReasonCache {
	cache := kri.NewReasonCache()
	r := container.NewSyncResult(container.StartContainer, name)
	r.Fail(err, message)
	cache.Update("u", container.PodSyncResult{SyncResults: []*container.SyncResult{r}})
	return cache
}

func TestContainerStatusTellsWhyItWaits(t *testing.T) {
	pod := specPod(v1.RestartPolicyAlways, 0, 1)
	in := statusInput{pod: pod, seen: seen(), reason: kri.NewReasonCache(), now: t0}
	if w := podStatus(in).ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "ContainerCreating" {
		t.Errorf("new: %v", w)
	}
	in.reason = reasons("c0", container.ErrFailedMount, "no volume")
	if w := podStatus(in).ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "FailedMount" || w.Message != "no volume" {
		t.Errorf("failed mount: %v", w)
	}
	in.seen = seen("c0", "run")
	if s := podStatus(in).ContainerStatuses[0]; s.State.Running == nil || !s.Ready {
		t.Errorf("an old reason hides a running container: %v", s.State)
	}
	in.seen, in.reason = seen("c0", "exit1"), reasons("c0", container.ErrCrashLoopBackOff, "back-off")
	s := podStatus(in).ContainerStatuses[0]
	if s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 1 {
		t.Errorf("back-off: %+v", s)
	}
	in.stopped = true
	if s := podStatus(in).ContainerStatuses[0]; s.State.Terminated == nil || s.State.Terminated.Reason != "Error" {
		t.Errorf("stopped: %+v", s)
	}
	pod = specPod(v1.RestartPolicyAlways, 1, 1)
	in = statusInput{pod: pod, seen: seen("i0", "run"), reason: kri.NewReasonCache(), now: t0}
	if w := podStatus(in).ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "PodInitializing" {
		t.Errorf("behind an init container: %v", w)
	}
}

// TestLastTerminationSurvives follows a container over two restarts.
func TestLastTerminationSurvives(t *testing.T) {
	pod, reason := specPod(v1.RestartPolicyAlways, 0, 1), kri.NewReasonCache()
	step := func(state string, attempt int) v1.ContainerStatus {
		s := seen("c0", state)
		s.ContainerStatuses[0].ID, s.ContainerStatuses[0].RestartCount = fmt.Sprint("process://", attempt), attempt
		pod.Status = podStatus(statusInput{pod: pod, seen: s, reason: reason, now: t0})
		return pod.Status.ContainerStatuses[0]
	}
	step("run", 0)
	if s := step("exit1", 0); s.LastTerminationState.Terminated != nil {
		t.Errorf("the first end is its own predecessor: %+v", s)
	}
	for range 2 {
		if s := step("run", 1); s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ContainerID != "process://0" || s.RestartCount != 1 {
			t.Errorf("restarted: %+v", s)
		}
	}
	if s := step("exit2", 1); s.State.Terminated.ExitCode != 2 || s.LastTerminationState.Terminated.ContainerID != "process://0" {
		t.Errorf("ended again: %+v", s)
	}
	if s := step("run", 2); s.LastTerminationState.Terminated.ContainerID != "process://1" {
		t.Errorf("restarted again: %+v", s)
	}
}

func TestConditionsKeepTheirTransition(t *testing.T) {
	pod := specPod(v1.RestartPolicyAlways, 0, 1)
	in := statusInput{pod: pod, seen: seen("c0", "run"), reason: kri.NewReasonCache(), now: t0}
	pod.Status = podStatus(in)
	in.now = t0.Add(time.Hour)
	for _, c := range podStatus(in).Conditions {
		if !c.LastTransitionTime.Time.Equal(t0) {
			t.Errorf("%s moved to %v", c.Type, c.LastTransitionTime)
		}
	}
	in.seen = seen("c0", "exit1")
	got := podStatus(in)
	for _, c := range got.Conditions {
		if c.Type == v1.PodReady && (!c.LastTransitionTime.Time.Equal(in.now) || c.Reason != "ContainersNotReady") {
			t.Errorf("%+v", c)
		}
	}
}

func TestLostContainer(t *testing.T) {
	s := seen("c0", "exit137")
	s.ContainerStatuses[0].Reason, s.ContainerStatuses[0].Message = "ContainerStatusUnknown", "m"
	in := statusInput{pod: specPod(v1.RestartPolicyNever, 0, 1), seen: s, reason: kri.NewReasonCache(), stopped: true, now: t0}
	if got := podStatus(in).ContainerStatuses[0].State.Terminated; got.Reason != "ContainerStatusUnknown" || got.Message != "m" {
		t.Errorf("%+v", got)
	}
}

// TestPodStatusProperties: whatever is seen, computing the status again from its
// own result changes nothing, and exactly one state is set per container.
func TestPodStatusProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyNever, v1.RestartPolicyOnFailure}).Draw(t, "policy")
		pod := specPod(policy, rapid.IntRange(0, 2).Draw(t, "inits"), rapid.IntRange(1, 3).Draw(t, "containers"))
		var states []string
		for _, name := range []string{"i0", "i1", "c0", "c1", "c2"} {
			if st := rapid.SampledFrom([]string{"", "run", "exit0", "exit1"}).Draw(t, name); st != "" {
				states = append(states, name, st)
			}
		}
		in := statusInput{pod: pod, seen: seen(states...), reason: kri.NewReasonCache(), stopped: rapid.Bool().Draw(t, "stopped"), now: t0}
		if rapid.Bool().Draw(t, "failing") {
			in.reason = reasons("c0", errors.New("Reason"), "")
		}
		first := podStatus(in)
		for _, c := range append(first.InitContainerStatuses, first.ContainerStatuses...) {
			n := 0
			for _, set := range []bool{c.State.Waiting != nil, c.State.Running != nil, c.State.Terminated != nil} {
				if set {
					n++
				}
			}
			if n != 1 {
				t.Fatalf("%s has %d states", c.Name, n)
			}
		}
		pod.Status, in.now = first, t0.Add(time.Hour)
		if second := podStatus(in); !equality.Semantic.DeepEqual(first, second) {
			t.Fatalf("not stable:\n%v\n%v", first, second)
		}
	})
}
