package main

import (
	"github.com/ha-sidecar/ha-sidecar/test/bench/audit"
)

// side is who attaches.
type side struct {
	// name is the program's in bin/, and its user agent.
	name string
	// title is for people.
	title string
}

// agent picks the side's requests.
func (s side) agent() audit.Agent { return audit.Program(s.name) }

var (
	ours   = side{"ha-sidecar", "ha-sidecar"}
	theirs = side{"csi-attacher", "csi-attacher v4.13.0"}
)

// setting is how everyone is set.
type setting struct {
	name, title string
	// flags are the same for both sides.
	flags []string
	// manager are flags of kube-controller-manager.
	manager []string
	// pods: kube-controller-manager makes the VolumeAttachments, for pods.
	pods bool
	// backlog: all is asked for while the side is stopped, on volumes that were
	// attached before, and timed from when it goes on.
	backlog bool
	// floor: what the API server can take is measured too.
	floor bool
}

// The settings of the bars.
var (
	shipped = setting{
		name:    "DEFAULT",
		title:   "everyone's shipped defaults: csi-attacher with 5 requests/s, burst 10, 10 threads; ha-sidecar as its chart sets it",
		manager: []string{"--kube-api-qps=20", "--kube-api-burst=30"},
	}
	tuned = setting{
		name:    "TUNED",
		title:   "both with --kube-api-qps=1000 --kube-api-burst=2000 --worker-threads=256; kube-controller-manager with 2000/4000",
		flags:   []string{"--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=256"},
		manager: []string{"--kube-api-qps=2000", "--kube-api-burst=4000"},
		floor:   true,
	}
	// waiting leaves out what the requests for the VolumeAttachments cost, which the
	// sides' own work shares the machine with in the others.
	waiting = setting{
		name:    "BACKLOG",
		title:   "as TUNED, on volumes that were attached before; all is asked for while the side is stopped, and timed from when it goes on",
		flags:   tuned.flags,
		manager: tuned.manager,
		backlog: true,
	}
)

// clusterArgs keep kube-controller-manager away from what the bench makes by
// hand: its attach-detach controller would detach what no pod uses, and its
// node lifecycle controller would taint nodes that have no kubelet. The binder
// and the protection of volumes would write to the PersistentVolumes meanwhile.
func (s setting) clusterArgs() []string {
	off := "-node-lifecycle-controller,-persistentvolume-binder-controller,-persistentvolume-protection-controller"
	if !s.pods {
		off += ",-persistentvolume-attach-detach-controller"
	}
	args := []string{"kube-controller-manager=--controllers=" + off}
	for _, flag := range s.manager {
		args = append(args, "kube-controller-manager="+flag)
	}
	return args
}
