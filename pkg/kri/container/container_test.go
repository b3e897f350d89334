package container

import (
	"errors"
	"strings"
	"testing"
)

func TestPodSyncResultError(t *testing.T) {
	var p PodSyncResult
	p.AddSyncResult(NewSyncResult(StartContainer, "good"))
	if err := p.Error(); err != nil {
		t.Errorf("success is the error %v", err)
	}
	bad := NewSyncResult(StartContainer, "bad")
	bad.Fail(ErrRunContainer, "no such file")
	p.AddSyncResult(bad)
	cause := errors.New("cause")
	p.Fail(cause)
	err := p.Error()
	if !errors.Is(err, ErrRunContainer) || !errors.Is(err, cause) {
		t.Errorf("%v does not wrap both causes", err)
	}
	for _, part := range []string{"StartContainer bad", "no such file"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not tell %q", err, part)
		}
	}
}

func TestFindContainerStatus(t *testing.T) {
	var none *PodStatus
	if none.FindContainerStatus("a") != nil {
		t.Error("a pod without status has a container")
	}
	s := &PodStatus{ContainerStatuses: []*Status{{Name: "a"}, {Name: "b", ExitCode: 7}}}
	if got := s.FindContainerStatus("b"); got == nil || got.ExitCode != 7 {
		t.Errorf("b is %v", got)
	}
	if got := s.FindContainerStatus("c"); got != nil {
		t.Errorf("c is %v", got)
	}
}

func TestRunning(t *testing.T) {
	s := &PodStatus{ID: "uid", Name: "n", Namespace: "ns", ContainerStatuses: []*Status{
		{Name: "a", ID: "process://a", State: StateRunning}, {Name: "b", State: StateExited}, {Name: "c", State: StateCreated},
	}}
	pod := s.Running()
	if pod.ID != "uid" || pod.Name != "n" || pod.Namespace != "ns" || len(pod.Containers) != 1 || pod.Containers[0].ID != "process://a" {
		t.Errorf("running: %+v", pod)
	}
	if !pod.Running() {
		t.Error("a pod with a running container does not run")
	}
	pod.Containers[0].State = StateExited
	if pod.Running() {
		t.Error("a pod without a running container runs")
	}
}
