package attach

import (
	v1 "k8s.io/api/core/v1"
	k8stypes "k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// world is which volumes should be on which nodes, and which are: what the
// ledger decides by. A VolumeAttachment that wants its volume stands in the
// desired state for the pods that do.
type world struct {
	driver  string
	desired cache.DesiredStateOfWorld
	actual  cache.ActualStateOfWorld
}

func newWorld(driver string) *world {
	plugins := volume.NewVolumePluginMgr(driver)
	return &world{
		driver:  driver,
		desired: cache.NewDesiredStateOfWorld(plugins),
		actual:  cache.NewActualStateOfWorld(plugins, cache.WithMode(cache.Modern)),
	}
}

// spec names a volume to the caches by no more than its handle: whatever
// PersistentVolumes name it, it is one volume.
func (w *world) spec(h volume.Handle) *volume.Spec {
	return &volume.Spec{InlineVolumeSpec: &v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{
		CSI: &v1.CSIPersistentVolumeSource{Driver: w.driver, VolumeHandle: string(h)},
	}}}
}

// pair is a volume and a node in the two caches, with the state where that is
// one that they do not know. The ledger's lock guards it.
type pair struct {
	world  *world
	volume v1.UniqueVolumeName
	spec   *volume.Spec
	node   string
	// call is Publishing or Unpublishing while that is in flight: for the actual
	// state the pair is uncertain then.
	call State
	// past is Refused or Fenced, where nothing is on the node: for the actual
	// state the pair is not there.
	past State
}

// state is what is known of the pair.
func (p *pair) state() State {
	if p.call != "" {
		return p.call
	}
	switch p.world.actual.GetAttachState(p.volume, p.node) {
	case cache.AttachStateAttached:
		return Attached
	case cache.AttachStateUncertain:
		return Uncertain
	}
	if p.past != "" {
		return p.past
	}
	return Absent
}

// become sets the state.
func (p *pair) become(s State) {
	p.call, p.past = "", ""
	switch s {
	case Publishing, Unpublishing:
		p.call = s
	case Refused, Fenced:
		p.past = s
	}
	if !s.MayHold() {
		p.world.actual.DeleteVolumeNode(p.volume, p.node)
		return
	}
	// With the name given the spec is not looked at, and nothing can fail.
	_, _ = p.world.actual.AddVolumeNodeAs(p.volume, p.spec, p.node, "", s == Attached)
}

// want notes whether a VolumeAttachment wants the volume on the node.
func (p *pair) want(uid k8stypes.UID, wanted bool) {
	pod, desired := types.UniquePodName("va/"+uid), p.world.desired
	if wanted {
		desired.AddNode(p.node)
		// It fails for a node that was not added, or another driver's volume.
		_, _ = desired.AddPod(pod, nil, p.spec, p.node)
		return
	}
	desired.DeletePod(pod, p.volume, p.node)
	_ = desired.DeleteNode(p.node) // It stays for as long as it has volumes.
}

// wanted reports whether any VolumeAttachment wants the volume on the node.
func (p *pair) wanted() bool { return p.world.desired.VolumeExists(p.volume, p.node) }

// outOfStep reports whether what is differs from what should be.
func (p *pair) outOfStep() bool {
	s := p.state()
	if p.wanted() {
		return s != Attached
	}
	return s != Absent && s != Fenced
}
