package main

import (
	"fmt"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubecache "k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"
	kubevolume "k8s.io/kubernetes/pkg/volume"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// subject is what both caches can do. Volumes are added by their names, so that
// neither side asks its plugins.
type subject interface {
	add(a *attachment) error
	delete(a *attachment)
	// forNode gives the number of the node's pairs.
	forNode(node string) int
	// tick gives the number of nodes to be reported.
	tick() int
	// unreport and report are what a detach that fails does to the report.
	unreport(a *attachment) error
	report(a *attachment)
}

// attachment has all that is given to the caches, made before anything is
// measured and shared by both.
type attachment struct {
	name   v1.UniqueVolumeName
	node   string
	ours   *volume.Spec
	theirs *kubevolume.Spec
}

// attachments are spread over the nodes one by one.
func attachments(n, nodes int) []attachment {
	names := make([]string, nodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%05d.example.com", i)
	}
	all := make([]attachment, n)
	for i := range all {
		pv := &v1.PersistentVolume{}
		all[i] = attachment{
			name:   v1.UniqueVolumeName(fmt.Sprintf("kubernetes.io/csi/driver.example.com^0f3c2a9e-5b1d-4c7e-9a40-%012d", i)),
			node:   names[i%nodes],
			ours:   &volume.Spec{PersistentVolume: pv},
			theirs: &kubevolume.Spec{PersistentVolume: pv},
		}
	}
	return all
}

const devicePath = "csi-7f4df584367e3c0f5c8f0e3ac4e9a1f0b25c1b7e6b0c3a6f3bcf9f6a4f0c1d2e"

type ours struct{ w cache.ActualStateOfWorld }

func newOurs() subject {
	return ours{cache.NewActualStateOfWorld(volume.NewVolumePluginMgr("driver.example.com"), cache.WithMode(cache.Modern))}
}

func (o ours) add(a *attachment) error {
	return o.w.MarkVolumeAsAttached(a.name, a.ours, a.node, devicePath)
}
func (o ours) delete(a *attachment)    { o.w.DeleteVolumeNode(a.name, a.node) }
func (o ours) forNode(node string) int { return len(o.w.GetAttachedVolumesForNode(node)) }
func (o ours) tick() int               { return len(o.w.GetVolumesToReportAttached()) }
func (o ours) unreport(a *attachment) error {
	return o.w.RemoveVolumeFromReportAsAttached(a.name, a.node)
}
func (o ours) report(a *attachment) { o.w.AddVolumeToReportAsAttached(a.name, a.node) }

// theirs logs nothing, which costs least.
type theirs struct {
	w   kubecache.ActualStateOfWorld
	log logr.Logger
}

func newTheirs() subject {
	return theirs{kubecache.NewActualStateOfWorld(&kubevolume.VolumePluginMgr{}), logr.Discard()}
}

func (t theirs) add(a *attachment) error {
	return t.w.MarkVolumeAsAttached(t.log, a.name, a.theirs, types.NodeName(a.node), devicePath)
}
func (t theirs) delete(a *attachment) { t.w.DeleteVolumeNode(a.name, types.NodeName(a.node)) }
func (t theirs) forNode(node string) int {
	return len(t.w.GetAttachedVolumesForNode(types.NodeName(node)))
}
func (t theirs) tick() int { return len(t.w.GetVolumesToReportAttached(t.log)) }
func (t theirs) unreport(a *attachment) error {
	return t.w.RemoveVolumeFromReportAsAttached(a.name, types.NodeName(a.node))
}
func (t theirs) report(a *attachment) {
	t.w.AddVolumeToReportAsAttached(t.log, a.name, types.NodeName(a.node))
}
