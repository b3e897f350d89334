package differential

import (
	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	kubecache "k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/cache"
)

// actual are the two caches, and what must be known of the operations to tell a
// difference that is meant from one that is not.
type actual struct {
	ours   cache.ActualStateOfWorld
	theirs kubecache.ActualStateOfWorld
	log    logr.Logger
	// assumed are the volumes, by node, that theirs takes for mounted although the
	// node has not told.
	assumed map[string]map[v1.UniqueVolumeName]bool
	// told are the volumes, by node, that the node has last told to have mounted.
	told map[string]map[v1.UniqueVolumeName]bool
	// paths are the device paths last given for each pair; specs the pairs that
	// have ever been given a spec. Theirs has one of each for a volume, ours for a
	// pair, and ours does not forget a spec.
	paths map[pair]string
	specs map[pair]bool
	// writer is the node whose pair was last added, of each volume.
	writer map[v1.UniqueVolumeName]string
}

type pair struct {
	volume v1.UniqueVolumeName
	node   string
}

func newActual(ours cache.ActualStateOfWorld, theirs kubecache.ActualStateOfWorld) *actual {
	return &actual{
		ours: ours, theirs: theirs, log: logr.Discard(),
		assumed: map[string]map[v1.UniqueVolumeName]bool{}, told: map[string]map[v1.UniqueVolumeName]bool{}, paths: map[pair]string{}, specs: map[pair]bool{},
		writer: map[v1.UniqueVolumeName]string{},
	}
}

// note is called before a pair is added.
func (a *actual) note(o op) {
	if o.Volume == volumes && o.Kind == "add" && !o.Named {
		return // an error on both sides
	}
	p := pair{nameOf(o.Volume), nodeOf(o.Node)}
	if a.theirs.GetAttachState(p.volume, types.NodeName(p.node)) == kubecache.AttachStateDetached && !a.told[p.node][p.volume] {
		if a.assumed[p.node] == nil {
			a.assumed[p.node] = map[v1.UniqueVolumeName]bool{}
		}
		a.assumed[p.node][p.volume] = true
	}
	a.paths[p], a.writer[p.volume] = o.Path, p.node
	if o.Kind != "add" || !o.Named {
		a.specs[p] = true
	}
}

// forget is called before a pair is deleted.
func (a *actual) forget(o op) {
	p := pair{nameOf(o.Volume), nodeOf(o.Node)}
	delete(a.paths, p)
	delete(a.specs, p)
}

// reported is a report of theirs with the device paths of the node's pairs.
func (a *actual) reported(node string, list []v1.AttachedVolume) []v1.AttachedVolume {
	for i := range list {
		list[i].DevicePath = a.path(pair{list[i].Name, node}, list[i].DevicePath)
	}
	return list
}

// path is what ours must show where theirs shows something: the same for the
// pair that was added last, and for others the pair's own.
func (a *actual) path(p pair, theirs string) string {
	if a.writer[p.volume] == p.node {
		return theirs
	}
	return a.paths[p]
}
