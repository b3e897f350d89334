package kri_test

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/container"
)

// The signatures of the seed, method by method: a change of one does not
// compile.
var (
	_ func() *kri.ReasonCache                                           = kri.NewReasonCache
	_ func(*kri.ReasonCache, types.UID, string) (*kri.ReasonItem, bool) = (*kri.ReasonCache).Get
	_ func(*kri.ReasonCache, types.UID, string)                         = (*kri.ReasonCache).Remove
	_ func(*kri.ReasonCache, types.UID, container.PodSyncResult)        = (*kri.ReasonCache).Update
	_ kri.ReasonItem                                                    = struct {
		Err     error
		Message string
	}{}
	_ container.SyncResult = struct {
		Action  container.SyncAction
		Target  any
		Error   error
		Message string
	}{}
	_ container.PodSyncResult = struct {
		SyncResults []*container.SyncResult
		SyncError   error
	}{}
)

// seedNode and seedPod are the interfaces as the seed has them. Interfaces are
// assignable both ways only if their methods are the same.
type seedNode interface {
	Ping(context.Context) error
	ConfigureNode(context.Context, string) *v1.Node
	RefreshNodeStatus(ctx context.Context, nodeStatus *v1.NodeStatus) bool
	SetStatusUpdateCallback(ctx context.Context, cb func(*v1.Node))
}

type seedPod interface {
	SyncPod(ctx context.Context, pod *v1.Pod, podStatus *container.PodStatus, reasonCache *kri.ReasonCache) error
	KillPod(ctx context.Context, pod *v1.Pod, runningPod container.Pod, gracePeriodOverride *int64) error
	DeletePod(ctx context.Context, pod *v1.Pod) error
	CleanupPods(ctx context.Context, pods []*v1.Pod, runningPods []*container.Pod, possiblyRunningPods map[types.UID]sets.Empty) error
	RefreshPodStatus(pod *v1.Pod, podStatus *v1.PodStatus)
	GetPodStatus(ctx context.Context, pod *v1.Pod) (*container.PodStatus, error)
	GetPods(ctx context.Context, all bool) ([]*container.Pod, error)
	Start(ctx context.Context) error
	Stop()
}

func TestInterfacesAreTheSeeds(t *testing.T) {
	var node kri.NodeProvider
	var pod kri.PodProvider
	var handler kri.PodLifecycleHandler
	var seedNode seedNode = node
	var seedPod seedPod = pod
	node, pod, handler = seedNode, seedPod, seedPod
	if node != nil || pod != nil || handler != nil {
		t.Error("nothing was assigned but nil")
	}
}
