package virtualnode

import (
	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

// podPlan is what to do next for a pod that is wanted.
type podPlan struct {
	// Start lists the containers to start now: one init container, or any
	// number of the others.
	Start []*v1.Container
	// Init is true when Start holds an init container.
	Init bool
	// Done is true when the pod has run to its end.
	Done bool
}

// planPod decides by what was observed. It is pure: whether a restart has to
// wait is not its business.
func planPod(pod *v1.Pod, status *container.PodStatus) podPlan {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		st := status.FindContainerStatus(c.Name)
		switch {
		case st == nil:
			return podPlan{Start: []*v1.Container{c}, Init: true}
		case st.State == container.StateRunning:
			return podPlan{}
		case st.ExitCode == 0:
			continue
		case pod.Spec.RestartPolicy == v1.RestartPolicyNever:
			return podPlan{Done: true}
		default:
			return podPlan{Start: []*v1.Container{c}, Init: true}
		}
	}
	plan := podPlan{Done: true}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		st := status.FindContainerStatus(c.Name)
		switch {
		case st == nil || restartable(pod.Spec.RestartPolicy, st):
			plan.Start = append(plan.Start, c)
			plan.Done = false
		case st.State == container.StateRunning:
			plan.Done = false
		}
	}
	return plan
}

// restartable reports whether a container that ended is to be started again.
func restartable(policy v1.RestartPolicy, st *container.Status) bool {
	if st.State == container.StateRunning {
		return false
	}
	switch policy {
	case v1.RestartPolicyNever:
		return false
	case v1.RestartPolicyOnFailure:
		return st.ExitCode != 0
	default:
		return true
	}
}
