package virtualnode

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri"
	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/nodectl"
)

// annotationAttachDetach makes kube-controller-manager attach volumes for the
// node; without it the node would have to do so itself.
const annotationAttachDetach = "volumes.kubernetes.io/controller-managed-attach-detach"

// kubeletVersion is the version of the kubelet's behaviour that the agent
// follows.
const kubeletVersion = "v1.37.2-virtualnode"

// nodeProvider implements kri.NodeProvider.
type nodeProvider struct {
	cfg   *Config
	inUse func() []v1.UniqueVolumeName

	mu       sync.Mutex
	bootID   string
	stopping bool
	changed  func(*v1.Node)
}

var _ kri.NodeProvider = (*nodeProvider)(nil)

// Ping hangs where the fault says so; else the process that could answer is the
// one that asks.
func (p *nodeProvider) Ping(ctx context.Context) error {
	return p.cfg.Faults.Hang(ctx, nodectl.HungPing)
}

// ConfigureNode returns the node as it is registered.
func (p *nodeProvider) ConfigureNode(ctx context.Context, name string) *v1.Node {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				v1.LabelHostname: name, v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH,
			},
			Annotations: map[string]string{annotationAttachDetach: "true"},
		},
	}
	if p.cfg.Zone != "" {
		node.Labels[v1.LabelTopologyZone] = p.cfg.Zone
	}
	maps.Copy(node.Labels, p.cfg.Labels)
	p.RefreshNodeStatus(ctx, &node.Status)
	return node
}

// RefreshNodeStatus sets all that the node knows of itself.
func (p *nodeProvider) RefreshNodeStatus(_ context.Context, status *v1.NodeStatus) bool {
	p.mu.Lock()
	bootID, stopping := p.bootID, p.stopping
	p.mu.Unlock()
	info := v1.NodeSystemInfo{
		MachineID: p.cfg.Name, SystemUUID: p.cfg.Name, BootID: bootID,
		KernelVersion: "virtual", OSImage: "virtualnode", ContainerRuntimeVersion: "process://1",
		KubeletVersion: kubeletVersion, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
	}
	capacity := v1.ResourceList{
		v1.ResourceCPU: p.cfg.CPU, v1.ResourceMemory: p.cfg.Memory,
		v1.ResourcePods: *resource.NewQuantity(p.cfg.Pods, resource.DecimalSI),
	}
	inUse := p.inUse()
	changed := status.NodeInfo != info || len(status.Capacity) != len(capacity) || !slices.Equal(status.VolumesInUse, inUse)
	status.NodeInfo, status.Capacity, status.Allocatable, status.VolumesInUse = info, capacity, capacity, inUse
	status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: nodeIP}, {Type: v1.NodeHostName, Address: p.cfg.Name}}
	return p.refreshConditions(status, stopping) || changed
}

// refreshConditions replaces only the node's own conditions.
func (p *nodeProvider) refreshConditions(status *v1.NodeStatus, stopping bool) bool {
	now := metav1.NewTime(p.cfg.Clock.Now())
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "AgentReady", Message: "The virtual node is ready"}
	if stopping {
		ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "AgentStopped", "The virtual node was stopped"
	}
	own := []v1.NodeCondition{
		{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse, Reason: "NotMeasured"},
		{Type: v1.NodeDiskPressure, Status: v1.ConditionFalse, Reason: "NotMeasured"},
		{Type: v1.NodePIDPressure, Status: v1.ConditionFalse, Reason: "NotMeasured"},
		ready,
	}
	changed := false
	for _, c := range own {
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		i := slices.IndexFunc(status.Conditions, func(o v1.NodeCondition) bool { return o.Type == c.Type })
		if i < 0 {
			status.Conditions = append(status.Conditions, c)
			changed = true
			continue
		}
		old := status.Conditions[i]
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		changed = changed || old.Status != c.Status || old.Reason != c.Reason
		status.Conditions[i] = c
	}
	return changed
}

// SetStatusUpdateCallback keeps cb for changes outside the refresh.
func (p *nodeProvider) SetStatusUpdateCallback(_ context.Context, cb func(*v1.Node)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed = cb
}

// boot sets the boot ID.
func (p *nodeProvider) boot(id string) { p.set(func() { p.bootID = id }) }

// stop makes the node not ready.
func (p *nodeProvider) stop() { p.set(func() { p.stopping = true }) }

func (p *nodeProvider) set(change func()) {
	p.mu.Lock()
	change()
	cb := p.changed
	p.mu.Unlock()
	if cb != nil {
		cb(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: p.cfg.Name}})
	}
}
