// Package nodectl is the control interface of a virtual node: its faults, and a
// client for the unix socket on which the node serves them.
//
//	GET    /v1/status           what the node runs, holds and suffers (Status)
//	POST   /v1/faults/<fault>   switch a fault on; crash and power-off do not return
//	DELETE /v1/faults/<fault>   switch it off
//	DELETE /v1/faults           switch all off
package nodectl

import (
	"fmt"
	"slices"
	"strings"
)

// Fault is something wrong with the node, on purpose.
type Fault string

const (
	// HangKill makes the agent hang whenever it has to stop containers: they go
	// on running and writing, pods stay Terminating, and go on after their
	// objects were force-deleted.
	HangKill Fault = "hang-kill"
	// Partition swallows all traffic between the agent and the API; the
	// workload lives.
	Partition Fault = "partition"
	// HungPing makes the node's own health check hang, so that its Lease is not
	// renewed.
	HungPing Fault = "hung-ping"
	// Crash kills the agent with SIGKILL; the workload lives.
	Crash Fault = "crash"
	// PowerOff kills the workload and the agent with SIGKILL. Nothing is
	// unmounted.
	PowerOff Fault = "power-off"
)

// Lasting are the faults that are on until released.
func Lasting() []Fault { return []Fault{HangKill, Partition, HungPing} }

// ParseFault reads a fault's name.
func ParseFault(name string) (Fault, error) {
	all := append(Lasting(), Crash, PowerOff)
	if f := Fault(name); slices.Contains(all, f) {
		return f, nil
	}
	var names []string
	for _, f := range all {
		names = append(names, string(f))
	}
	return "", fmt.Errorf("unknown fault %q (one of %s)", name, strings.Join(names, ", "))
}

// Status is what a node tells about itself.
type Status struct {
	Node   string `json:"node"`
	BootID string `json:"bootID"`
	PID    int    `json:"pid"`
	// Faults are those switched on, sorted.
	Faults       []Fault  `json:"faults"`
	Pods         []Pod    `json:"pods"`
	VolumesInUse []string `json:"volumesInUse"`
	Drivers      []string `json:"drivers"`
}

// Pod is a pod as the node has it, whether or not the API still does.
type Pod struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Phase is sync, terminating, terminated, or leftover.
	Phase      string      `json:"phase"`
	Gone       bool        `json:"gone"`
	Containers []Container `json:"containers"`
}

// Container is one container of a Pod.
type Container struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	PID      int    `json:"pid,omitempty"`
	Restarts int    `json:"restarts"`
	ExitCode int    `json:"exitCode"`
	Log      string `json:"log"`
}
