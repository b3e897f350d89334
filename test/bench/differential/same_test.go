package differential

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubecache "k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
)

// ignoringOrder compares lists as sets; nil is as good as empty.
var ignoringOrder = gocmp.Options{
	cmpopts.EquateEmpty(),
	cmpopts.SortSlices(func(a, b v1.AttachedVolume) bool { return a.Name < b.Name }),
	cmpopts.SortSlices(func(a, b seen) bool { return cmp.Or(cmp.Compare(a.Volume, b.Volume), cmp.Compare(a.Node, b.Node)) < 0 }),
	cmpopts.SortSlices(func(a, b string) bool { return a < b }),
}

// same says how what ours gave differs from what theirs did.
func same(ours, theirs any) error {
	if diff := gocmp.Diff(theirs, ours, ignoringOrder); diff != "" {
		return fmt.Errorf("theirs -, ours +\n%s", diff)
	}
	return nil
}

// sameError compares whether there is one; the texts are each side's own.
func sameError(ours, theirs error) error {
	if (ours == nil) != (theirs == nil) {
		return fmt.Errorf("theirs returned error %v, ours %v", theirs, ours)
	}
	return nil
}

// seen is a pair as a cache shows it.
type seen struct {
	Volume     v1.UniqueVolumeName
	Node, Path string
	Spec       bool
	Mounted    bool
	Attachable bool
	Requested  time.Time
}

func ourSeen(list []cache.AttachedVolume) []seen {
	all := make([]seen, 0, len(list))
	for _, v := range list {
		all = append(all, seen{v.VolumeName, v.NodeName, v.DevicePath, v.VolumeSpec != nil, v.MountedByNode, v.PluginIsAttachable, v.DetachRequestedTime})
	}
	return all
}

// theirSeen is what ours must show, the differences that are meant taken out.
func (a *actual) theirSeen(list []kubecache.AttachedVolume) []seen {
	all := make([]seen, 0, len(list))
	for _, v := range list {
		p := pair{v.VolumeName, string(v.NodeName)}
		all = append(all, seen{
			p.volume, p.node, a.path(p, v.DevicePath), a.specs[p],
			v.MountedByNode && !a.assumed[p.node][p.volume], v.PluginIsAttachable, v.DetachRequestedTime,
		})
	}
	return all
}

// states are the names of the states, since their numbers differ.
var states = map[cache.AttachState]string{
	cache.AttachStateAttached: kubecache.AttachStateAttached.String(), cache.AttachStateUncertain: kubecache.AttachStateUncertain.String(),
	cache.AttachStateDetached: kubecache.AttachStateDetached.String(),
}

// compare looks at all that the caches show without being changed by it.
func (a *actual) compare() error {
	if err := same(ourSeen(a.ours.GetAttachedVolumes()), a.theirSeen(a.theirs.GetAttachedVolumes())); err != nil {
		return fmt.Errorf("GetAttachedVolumes: %w", err)
	}
	perNode := map[string][]string{}
	for node, list := range a.ours.GetAttachedVolumesPerNode() {
		for _, v := range list {
			perNode[node] = append(perNode[node], string(v.VolumeName))
		}
	}
	wantPerNode := map[string][]string{}
	for node, list := range a.theirs.GetAttachedVolumesPerNode() {
		for _, v := range list {
			wantPerNode[string(node)] = append(wantPerNode[string(node)], string(v.VolumeName))
		}
	}
	if err := same(perNode, wantPerNode); err != nil {
		return fmt.Errorf("GetAttachedVolumesPerNode: %w", err)
	}
	for node := range nodes {
		if err := same(ourSeen(a.ours.GetAttachedVolumesForNode(nodeOf(node))), a.theirSeen(a.theirs.GetAttachedVolumesForNode(theirNode(node)))); err != nil {
			return fmt.Errorf("GetAttachedVolumesForNode(%s): %w", nodeOf(node), err)
		}
	}
	for volume := range volumes + 1 {
		if err := a.compareVolume(nameOf(volume)); err != nil {
			return fmt.Errorf("volume %d: %w", volume, err)
		}
	}
	return nil
}

func (a *actual) compareVolume(name v1.UniqueVolumeName) error {
	var want []string
	for _, node := range a.theirs.GetNodesForAttachedVolume(name) {
		want = append(want, string(node))
	}
	if err := same(a.ours.GetNodesForAttachedVolume(name), want); err != nil {
		return fmt.Errorf("GetNodesForAttachedVolume: %w", err)
	}
	for node := range nodes {
		theirs := a.theirs.GetAttachState(name, types.NodeName(nodeOf(node)))
		if err := same(states[a.ours.GetAttachState(name, nodeOf(node))], theirs.String()); err != nil {
			return fmt.Errorf("GetAttachState on %s: %w", nodeOf(node), err)
		}
		if err := same(a.ours.VolumeNodeExists(name, nodeOf(node)), theirs != kubecache.AttachStateDetached); err != nil {
			return fmt.Errorf("VolumeNodeExists on %s: %w", nodeOf(node), err)
		}
	}
	return nil
}

func keys[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}
