package kri

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

// NodeProvider tells an agent about the node that it registers and keeps alive
// in Kubernetes.
type NodeProvider interface {
	// Ping reports whether the node is alive. It is called before every renewal
	// of the node's Lease and should be cheap; while it fails or hangs, the
	// Lease is not renewed.
	Ping(context.Context) error

	// ConfigureNode returns the Node object to register under the given name.
	ConfigureNode(context.Context, string) *v1.Node

	// RefreshNodeStatus brings nodeStatus up to date in place. It reports
	// whether anything but heartbeat times changed.
	RefreshNodeStatus(ctx context.Context, nodeStatus *v1.NodeStatus) bool

	// SetStatusUpdateCallback gives the function to call when the status of the
	// node has changed, outside the periodic refresh. Neither this method nor
	// cb may block its caller.
	SetStatusUpdateCallback(ctx context.Context, cb func(*v1.Node))
}

// PodLifecycleHandler runs the pods that are bound to the node. The agent calls
// it with one worker per pod UID: SyncPod while the pod is wanted, KillPod until
// nothing runs any more, DeletePod for what is left. A UID that has been killed
// is never synced again.
type PodLifecycleHandler interface {
	// SyncPod makes what runs match pod. It may be called any number of times;
	// an error is retried. Failures to start a container are put into
	// reasonCache, which may be nil.
	SyncPod(ctx context.Context, pod *v1.Pod, podStatus *container.PodStatus, reasonCache *ReasonCache) error

	// KillPod stops the containers of a pod. gracePeriodOverride is in seconds
	// and replaces the pod's own grace period; nil leaves that in force. When
	// KillPod returns nil no container of the pod runs.
	KillPod(ctx context.Context, pod *v1.Pod, runningPod container.Pod, gracePeriodOverride *int64) error

	// DeletePod releases what a stopped pod still holds, above all its volumes.
	DeletePod(ctx context.Context, pod *v1.Pod) error

	// CleanupPods stops and removes those of runningPods that are wanted by
	// nobody: neither in pods, which are the API's, nor in possiblyRunningPods,
	// which have a worker. The caller lists runningPods before the other two,
	// with GetPods, so that a pod which appears meanwhile is never touched.
	CleanupPods(ctx context.Context, pods []*v1.Pod, runningPods []*container.Pod, possiblyRunningPods map[types.UID]sets.Empty) error

	// RefreshPodStatus adds to podStatus what only the provider knows.
	RefreshPodStatus(pod *v1.Pod, podStatus *v1.PodStatus)

	// GetPodStatus returns the state of the pod's containers, as observed.
	GetPodStatus(ctx context.Context, pod *v1.Pod) (*container.PodStatus, error)

	// GetPods returns the pods that the provider has anything of: those with a
	// running container, or all, down to a volume or a directory.
	GetPods(ctx context.Context, all bool) ([]*container.Pod, error)

	// Start makes the provider ready, taking over what an earlier process left
	// running. It returns once that is done.
	Start(ctx context.Context) error

	// Stop ends the provider's own activity. It stops no pod.
	Stop()
}

// PodProvider is what an agent needs to run pods.
type PodProvider interface {
	PodLifecycleHandler
}
