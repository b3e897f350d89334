package container

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State is the state of a container.
type State string

// The states of a container.
const (
	StateCreated State = "created"
	StateRunning State = "running"
	StateExited  State = "exited"
	StateUnknown State = "unknown"
)

// Container is a container that a provider knows.
type Container struct {
	// ID is unique over restarts, of the form <type>://<opaque>.
	ID    string
	Name  string
	Image string
	State State
}

// Pod is a pod as the provider knows it, whatever the API says.
type Pod struct {
	ID         types.UID
	Name       string
	Namespace  string
	Containers []*Container
}

// Running reports whether any container of the pod runs.
func (p *Pod) Running() bool {
	for _, c := range p.Containers {
		if c.State == StateRunning {
			return true
		}
	}
	return false
}

// Status is the observed state of one container: its latest attempt.
type Status struct {
	ID         string
	Name       string
	Image      string
	State      State
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int
	// Signal is the signal that ended the container, 0 if none did.
	Signal int
	// RestartCount is the number of attempts before this one.
	RestartCount int
	Reason       string
	Message      string
}

// PodStatus is the observed state of a pod.
type PodStatus struct {
	ID                types.UID
	Name              string
	Namespace         string
	IPs               []string
	ContainerStatuses []*Status
}

// FindContainerStatus returns the status of the named container, nil if the
// container never ran.
func (s *PodStatus) FindContainerStatus(name string) *Status {
	if s == nil {
		return nil
	}
	for _, c := range s.ContainerStatuses {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// Running returns the containers that run, as a Pod.
func (s *PodStatus) Running() Pod {
	pod := Pod{ID: s.ID, Name: s.Name, Namespace: s.Namespace}
	for _, c := range s.ContainerStatuses {
		if c.State == StateRunning {
			pod.Containers = append(pod.Containers, &Container{ID: c.ID, Name: c.Name, Image: c.Image, State: c.State})
		}
	}
	return pod
}
