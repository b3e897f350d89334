package attach

import (
	"context"
	"fmt"
	"maps"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// sightingsNeeded is how many answers in a row must show an orphan before it is
// told of, and detached where that is wanted: a VolumeAttachment may just be gone.
const sightingsNeeded = 2

// orphan is a publication that no VolumeAttachment accounts for, of a volume that
// the cluster has a PersistentVolume of, to a node of the cluster. Others are
// nobody's business here: one array may serve several clusters.
type orphan struct {
	key    volume.Key
	nodeID string
}

// orphanage remembers orphans from one answer to the next.
type orphanage struct {
	mu   sync.Mutex
	seen map[orphan]int
}

// sight replaces what was seen by what is seen now, and returns those that have
// been seen often enough, and of them those that are new.
func (o *orphanage) sight(now map[orphan]struct{}) (sure, news []orphan) {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := map[orphan]int{}
	for x := range now {
		seen[x] = o.seen[x] + 1
		if seen[x] >= sightingsNeeded {
			sure = append(sure, x)
		}
		if seen[x] == sightingsNeeded {
			news = append(news, x)
		}
	}
	o.seen = seen
	return sure, news
}

// count is how many are sure.
func (o *orphanage) count() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, times := range o.seen {
		if times >= sightingsNeeded {
			n++
		}
	}
	return n
}

// lookForOrphans finds, tells of and, if wanted, detaches orphans.
func (c *Controller) lookForOrphans(ctx context.Context, published map[volume.Handle][]string) {
	pvs, err := c.volumesHere()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot look for volumes published for no VolumeAttachment")
		return
	}
	nodes, err := c.nodesHere()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot look for volumes published for no VolumeAttachment")
		return
	}
	now, known := map[orphan]struct{}{}, c.ledger.listedNodes(c.listedAs)
	for handle, nodeIDs := range published {
		for _, id := range nodeIDs {
			node, ours := nodes[id]
			key := volume.Key{Handle: handle, Node: node}
			if ours && pvs[handle] != nil && !known[handle][id] && !c.ledger.accountsFor(key, id) {
				now[orphan{key, id}] = struct{}{}
			}
		}
	}
	sure, news := c.orphans.sight(now)
	for _, o := range news {
		c.tellOfOrphan(ctx, o, pvs[o.key.Handle])
	}
	if !c.cfg.DetachOrphans || len(sure) == 0 {
		return
	}
	if err := c.detachOrphans(ctx, sure, pvs); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot detach volumes published for no VolumeAttachment")
	}
}

func (c *Controller) tellOfOrphan(ctx context.Context, o orphan, pv *v1.PersistentVolume) {
	next := "it is detached now (--detach-orphans)"
	if !c.cfg.DetachOrphans {
		next = "nothing is done: detach it at the storage system, or set --detach-orphans"
	}
	message := fmt.Sprintf("The driver has the volume published to node %s (%s), for which there is no VolumeAttachment; %s", o.key.Node, o.nodeID, next)
	klog.FromContext(ctx).Info("A volume is published for no VolumeAttachment", "persistentVolume", klog.KObj(pv), "volume", o.key.Handle, "node", o.key.Node, "nodeID", o.nodeID, "detach", c.cfg.DetachOrphans)
	if c.cfg.Recorder != nil {
		c.cfg.Recorder.Event(pv, v1.EventTypeWarning, ReasonOrphaned, cut(message))
	}
}

// detachOrphans hands orphans to the lanes, as volumes that nobody asks for,
// after a live read: the informer may not know a new VolumeAttachment yet.
func (c *Controller) detachOrphans(ctx context.Context, sure []orphan, pvs map[volume.Handle]*v1.PersistentVolume) error {
	listCtx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	list, err := c.cfg.Client.StorageV1().VolumeAttachments().List(listCtx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	asked := map[volume.Key]bool{}
	for i := range list.Items {
		for _, key := range c.couldMean(&list.Items[i], pvs) {
			asked[key] = true
		}
	}
	for _, o := range sure {
		if asked[o.key] || c.mayAct() != nil {
			continue
		}
		if c.ledger.adopt(o, pvs[o.key.Handle]) {
			c.enqueue(item{key: o.key}, true)
		}
	}
	return nil
}

// couldMean lists the keys that a VolumeAttachment may speak of: by the handle
// that it was published with, and by its PersistentVolume.
func (c *Controller) couldMean(va *storagev1.VolumeAttachment, pvs map[volume.Handle]*v1.PersistentVolume) (keys []volume.Key) {
	if va.Spec.Attacher != c.cfg.DriverName {
		return nil
	}
	handles := map[volume.Handle]struct{}{volume.Handle(va.Annotations[AnnotationHandle]): {}}
	if res, err := c.resolve(va); err == nil {
		handles[res.key.Handle] = struct{}{}
	} else {
		// Nobody knows what it means: it keeps every volume from being detached there.
		maps.Insert(handles, func(yield func(volume.Handle, struct{}) bool) {
			for h := range pvs {
				if !yield(h, struct{}{}) {
					return
				}
			}
		})
	}
	for h := range handles {
		keys = append(keys, volume.Key{Handle: h, Node: va.Spec.NodeName})
	}
	return keys
}

// volumesHere are the driver's volumes that have a PersistentVolume.
func (c *Controller) volumesHere() (map[volume.Handle]*v1.PersistentVolume, error) {
	list, err := c.pvs.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing PersistentVolumes: %w", err)
	}
	pvs := map[volume.Handle]*v1.PersistentVolume{}
	for _, pv := range list {
		csiPV, err := c.translated(pv)
		if err == nil && c.ours(csiPV) == nil {
			pvs[volume.Handle(csiPV.Spec.CSI.VolumeHandle)] = csiPV
		}
	}
	return pvs, nil
}

// nodesHere are the names of the cluster's nodes by their ID.
func (c *Controller) nodesHere() (map[string]string, error) {
	list, err := c.csiNodes.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("listing CSINodes: %w", err)
	}
	names := map[string]string{}
	for _, n := range list {
		if id := c.idIn(n); id != "" {
			names[id] = n.Name
		}
	}
	return names, nil
}

// listedNodes are the node IDs of all volumes known, by the handle that the driver
// lists them under, which for one that was migrated is not its own.
func (l *ledger) listedNodes(listedAs func(h volume.Handle, nodeID string) volume.Handle) map[volume.Handle]map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	nodes := map[volume.Handle]map[string]bool{}
	for h, v := range l.volumes {
		for _, e := range v.keys {
			listed := listedAs(h, e.nodeID)
			if nodes[listed] == nil {
				nodes[listed] = map[string]bool{}
			}
			nodes[listed][e.nodeID] = true
		}
	}
	return nodes
}

// accountsFor reports whether anything is known of the volume on the node, by its
// name or by its ID: then it is no orphan.
func (l *ledger) accountsFor(k volume.Key, nodeID string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.knows(k, nodeID)
}

func (l *ledger) knows(k volume.Key, nodeID string) bool {
	v, ok := l.volumes[k.Handle]
	if !ok {
		return false
	}
	if _, busy := v.calls[k.Node]; busy || v.keys[k.Node] != nil {
		return true
	}
	for _, e := range v.keys {
		if e.nodeID == nodeID {
			return true
		}
	}
	return false
}

// adopt takes an orphan in as a volume that is there and that nobody asks for.
func (l *ledger) adopt(o orphan, pv *v1.PersistentVolume) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.knows(o.key, o.nodeID) {
		return false
	}
	e := l.entry(o.key)
	e.become(Uncertain)
	e.nodeID, e.source, e.exclusive = o.nodeID, pv.Name, volume.Exclusive(pv)
	e.proof.callEnded(Uncertain, l.now())
	return true
}
