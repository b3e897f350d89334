package virtualnode

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

// nodeIP is the address of node and pods: all are processes of one machine.
const nodeIP = "127.0.0.1"

// statusInput is all that a pod's status depends on.
type statusInput struct {
	pod    *v1.Pod // with the status that was written last
	seen   *container.PodStatus
	reason *kri.ReasonCache
	// stopped is true once the pod was killed or ran to its end, and will not
	// run again.
	stopped bool
	now     time.Time
}

// podStatus computes the status to write. It is pure.
func podStatus(in statusInput) v1.PodStatus {
	old := &in.pod.Status
	out := v1.PodStatus{
		HostIP: nodeIP, HostIPs: []v1.HostIP{{IP: nodeIP}},
		PodIP: nodeIP, PodIPs: []v1.PodIP{{IP: nodeIP}},
		StartTime:          old.StartTime,
		ObservedGeneration: in.pod.Generation,
		QOSClass:           old.QOSClass,
		Reason:             old.Reason,
		Message:            old.Message,
		VolumeHealth:       old.VolumeHealth,
	}
	if out.StartTime == nil {
		t := metav1.NewTime(in.now.Truncate(time.Second))
		out.StartTime = &t
	}
	isInitialized := initialized(in.pod, in.seen)
	out.InitContainerStatuses = containerStatuses(in, in.pod.Spec.InitContainers, old.InitContainerStatuses, "ContainerCreating")
	waiting := "ContainerCreating"
	if !isInitialized {
		waiting = "PodInitializing"
	}
	out.ContainerStatuses = containerStatuses(in, in.pod.Spec.Containers, old.ContainerStatuses, waiting)
	out.Phase = phase(in, isInitialized)
	out.Conditions = podConditions(in, &out, isInitialized)
	return out
}

// initialized reports whether every init container has succeeded.
func initialized(pod *v1.Pod, seen *container.PodStatus) bool {
	for i := range pod.Spec.InitContainers {
		st := seen.FindContainerStatus(pod.Spec.InitContainers[i].Name)
		if st == nil || st.State != container.StateExited || st.ExitCode != 0 {
			return false
		}
	}
	return true
}

// phase never leaves a terminal phase, whoever wrote it.
func phase(in statusInput, isInitialized bool) v1.PodPhase {
	if old := in.pod.Status.Phase; old == v1.PodFailed || old == v1.PodSucceeded {
		return old
	}
	if in.stopped {
		return finalPhase(in, isInitialized)
	}
	if !isInitialized {
		return v1.PodPending
	}
	for i := range in.pod.Spec.Containers {
		if in.seen.FindContainerStatus(in.pod.Spec.Containers[i].Name) == nil {
			return v1.PodPending
		}
	}
	return v1.PodRunning
}

// finalPhase: a pod that was stopped before all its containers succeeded has
// failed.
func finalPhase(in statusInput, isInitialized bool) v1.PodPhase {
	if !isInitialized {
		return v1.PodFailed
	}
	for i := range in.pod.Spec.Containers {
		st := in.seen.FindContainerStatus(in.pod.Spec.Containers[i].Name)
		if st == nil || st.State != container.StateExited || st.ExitCode != 0 {
			return v1.PodFailed
		}
	}
	return v1.PodSucceeded
}

func containerStatuses(in statusInput, specs []v1.Container, old []v1.ContainerStatus, waiting string) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for i := range specs {
		c := &specs[i]
		st := v1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: "process"}
		if i := slices.IndexFunc(old, func(o v1.ContainerStatus) bool { return o.Name == c.Name }); i >= 0 {
			st.LastTerminationState = lastTermination(&old[i], in.seen.FindContainerStatus(c.Name))
		}
		fillContainer(in, c, &st, waiting)
		started := st.State.Running != nil
		st.Ready, st.Started = started, &started
		out = append(out, st)
	}
	return out
}

// lastTermination keeps how the attempt before the one now seen ended.
func lastTermination(old *v1.ContainerStatus, seen *container.Status) v1.ContainerState {
	if t := old.State.Terminated; t != nil && (seen == nil || t.ContainerID != seen.ID) {
		return v1.ContainerState{Terminated: t}
	}
	if t := old.LastTerminationState.Terminated; t != nil && (seen == nil || t.ContainerID != seen.ID) {
		return v1.ContainerState{Terminated: t}
	}
	return v1.ContainerState{}
}

func fillContainer(in statusInput, c *v1.Container, st *v1.ContainerStatus, waiting string) {
	seen := in.seen.FindContainerStatus(c.Name)
	if seen != nil {
		st.ContainerID, st.RestartCount = seen.ID, int32(seen.RestartCount)
		if seen.State == container.StateRunning {
			st.State.Running = &v1.ContainerStateRunning{StartedAt: metav1.NewTime(seen.StartedAt)}
			return
		}
		st.State.Terminated = terminated(seen)
	}
	if in.stopped && seen != nil {
		return
	}
	reason := v1.ContainerStateWaiting{Reason: waiting}
	item, failed := in.reason.Get(in.pod.UID, c.Name)
	if failed {
		reason = v1.ContainerStateWaiting{Reason: item.Err.Error(), Message: item.Message}
	}
	if seen == nil || failed && restartable(in.pod.Spec.RestartPolicy, seen) {
		if st.State.Terminated != nil {
			st.LastTerminationState = v1.ContainerState{Terminated: st.State.Terminated}
		}
		st.State = v1.ContainerState{Waiting: &reason}
	}
}

func terminated(seen *container.Status) *v1.ContainerStateTerminated {
	reason := seen.Reason
	if reason == "" {
		if reason = "Completed"; seen.ExitCode != 0 {
			reason = "Error"
		}
	}
	return &v1.ContainerStateTerminated{
		ExitCode: int32(seen.ExitCode), Signal: int32(seen.Signal), Reason: reason, Message: seen.Message,
		StartedAt: metav1.NewTime(seen.StartedAt), FinishedAt: metav1.NewTime(seen.FinishedAt), ContainerID: seen.ID,
	}
}

// podConditions returns our conditions; others are left to their writers.
func podConditions(in statusInput, status *v1.PodStatus, isInitialized bool) []v1.PodCondition {
	ready, started := status.Phase == v1.PodRunning, false
	for i := range status.ContainerStatuses {
		ready = ready && status.ContainerStatuses[i].Ready
		started = started || status.ContainerStatuses[i].State.Running != nil
	}
	reason := ""
	switch {
	case status.Phase == v1.PodSucceeded || status.Phase == v1.PodFailed:
		reason = "PodCompleted"
	case !ready:
		reason = "ContainersNotReady"
	}
	return []v1.PodCondition{
		condition(in, v1.PodReadyToStartContainers, started || status.Phase == v1.PodRunning, ""),
		condition(in, v1.PodInitialized, isInitialized, ""),
		condition(in, v1.ContainersReady, ready, reason),
		condition(in, v1.PodReady, ready, reason),
	}
}

func condition(in statusInput, kind v1.PodConditionType, is bool, reason string) v1.PodCondition {
	c := v1.PodCondition{Type: kind, Status: v1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(in.now.Truncate(time.Second))}
	if is {
		c.Status, c.Reason = v1.ConditionTrue, ""
	}
	for _, old := range in.pod.Status.Conditions {
		if old.Type == kind && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}
