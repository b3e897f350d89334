package attach

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// enqueue puts an item into the attach lane, which hands over what is not its
// own; a fresh change also ends the item's backoff.
func (c *Controller) enqueue(it item, fresh bool) {
	if fresh {
		c.lanes.forget(it)
	}
	switch {
	case it.pv != "":
		c.lanes.add(c.lanes.detach, it)
	case it.key != volume.Key{} && c.leavingKey(it.key):
		c.lanes.add(c.lanes.detach, it)
	default:
		c.lanes.add(c.lanes.attach, it)
	}
}

// leavingKey guesses the lane of a key, so that detaches do not pass through
// the queue of the attaches.
func (c *Controller) leavingKey(k volume.Key) bool {
	c.ledger.mu.Lock()
	defer c.ledger.mu.Unlock()
	v, ok := c.ledger.volumes[k.Handle]
	return ok && v.keys[k.Node] != nil && !v.keys[k.Node].wanted()
}

// onAttachment takes in a VolumeAttachment from the informer or a list.
func (c *Controller) onAttachment(obj any) {
	va, ok := obj.(*storagev1.VolumeAttachment)
	if !ok || va.Spec.Attacher != c.cfg.DriverName {
		return
	}
	res := resolution{}
	if !c.cfg.Trivial {
		// Why it cannot be resolved is told by the worker.
		res, _ = c.resolve(va)
	}
	fresh, foreign := c.ledger.observe(va, res)
	if foreign {
		c.suspect(va)
	}
	c.enqueueAttachment(va, fresh)
}

func (c *Controller) enqueueAttachment(va *storagev1.VolumeAttachment, fresh bool) {
	_, key, resolved, ok := c.ledger.lookup(va.UID)
	switch {
	case !ok:
	case resolved:
		c.enqueue(item{key: key}, fresh)
	case fresh || c.cfg.Trivial:
		c.enqueue(item{uid: va.UID}, fresh)
	}
}

// onAttachmentGone forgets a VolumeAttachment. A volume that was still there
// without it, since somebody took our finalizer off, is unpublished.
func (c *Controller) onAttachmentGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	va, ok := obj.(*storagev1.VolumeAttachment)
	if !ok || va.Spec.Attacher != c.cfg.DriverName {
		return
	}
	key, resolved := c.ledger.forget(va.UID)
	c.lanes.forget(item{uid: va.UID})
	c.guard.forget(va.UID)
	if resolved {
		c.enqueue(item{key: key}, true)
		if !c.Holds(key.Handle) {
			c.cfg.Released(key.Handle)
		}
	}
	if pv, err := c.pvs.Get(pvName(va)); err == nil && c.leaving(pv) {
		c.enqueue(item{pv: pv.Name}, true)
	}
}

// onPV wakes the VolumeAttachments that could not be resolved, and the removal
// of our finalizer.
func (c *Controller) onPV(obj any) {
	pv, ok := obj.(*v1.PersistentVolume)
	if !ok {
		return
	}
	if c.leaving(pv) {
		c.enqueue(item{pv: pv.Name}, false)
	}
	for _, uid := range c.ledger.usersOf(pv.Name) {
		if _, _, resolved, ok := c.ledger.lookup(uid); ok && !resolved && !c.cfg.Trivial {
			c.enqueue(item{uid: uid}, true)
		}
	}
}

// onPVAdded also wakes what failed for want of it.
func (c *Controller) onPVAdded(obj any) {
	c.onPV(obj)
	pv, ok := obj.(*v1.PersistentVolume)
	if !ok {
		return
	}
	for _, uid := range c.ledger.usersOf(pv.Name) {
		if _, key, resolved, ok := c.ledger.lookup(uid); ok && resolved {
			c.enqueue(item{key: key}, true)
		}
	}
}

// onNode wakes what waited for a Node's hold to come off.
func (c *Controller) onNode(was, is *v1.Node) {
	key := volume.HoldKey(c.cfg.DriverName)
	before, held := was.Annotations[key]
	after, holds := is.Annotations[key]
	if held != holds || before != after {
		c.wakeNode(is.Name)
	}
}

// onNodeGone wakes it too, and what was kept back for the node: the hold went with
// the Node.
func (c *Controller) onNodeGone(obj any) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	n, ok := obj.(*v1.Node)
	if !ok {
		return
	}
	c.ledger.nodeGone(n.Name)
	c.wakeNode(n.Name)
	c.wakeKept(n.Name, nil)
}

// onCSINode wakes what failed for want of a node ID.
func (c *Controller) onCSINode(was, is *storagev1.CSINode) {
	if c.idIn(was) != c.idIn(is) {
		c.wakeNode(is.Name)
	}
}

func (c *Controller) idIn(n *storagev1.CSINode) string {
	if n == nil {
		return ""
	}
	for i := range n.Spec.Drivers {
		if n.Spec.Drivers[i].Name == c.cfg.DriverName {
			return n.Spec.Drivers[i].NodeID
		}
	}
	return ""
}

// wakeNode ends the backoff of every key of the node that is not at rest.
func (c *Controller) wakeNode(node string) {
	for _, k := range c.ledger.unsettledOn(node) {
		c.enqueue(item{key: k}, true)
	}
}

// subscribe registers the handlers; the result takes them back, and tells when
// they have seen all there is.
func (c *Controller) subscribe() (synced []cache.InformerSynced, unsubscribe func(), err error) {
	var undo []func()
	unsubscribe = func() {
		for _, f := range undo {
			f()
		}
	}
	add := func(inf cache.SharedIndexInformer, h cache.ResourceEventHandlerFuncs) {
		if err != nil {
			return
		}
		var reg cache.ResourceEventHandlerRegistration
		if reg, err = inf.AddEventHandler(h); err != nil {
			return
		}
		synced = append(synced, reg.HasSynced)
		undo = append(undo, func() { _ = inf.RemoveEventHandler(reg) }) // fails only for a foreign registration
	}
	add(c.vaInformer, cache.ResourceEventHandlerFuncs{
		AddFunc:    c.onAttachment,
		UpdateFunc: func(_, is any) { c.onAttachment(is) },
		DeleteFunc: c.onAttachmentGone,
	})
	add(c.pvInformer, cache.ResourceEventHandlerFuncs{
		AddFunc:    c.onPVAdded,
		UpdateFunc: func(_, is any) { c.onPV(is) },
	})
	add(c.nodeInformer, cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(was, is any) {
			if a, ok := was.(*v1.Node); ok {
				if b, ok := is.(*v1.Node); ok {
					c.onNode(a, b)
					c.wakeKept(b.Name, b)
				}
			}
		},
		DeleteFunc: c.onNodeGone,
	})
	add(c.csiNodeInformer, cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if n, ok := obj.(*storagev1.CSINode); ok {
				c.onCSINode(nil, n)
			}
		},
		UpdateFunc: func(was, is any) {
			if a, ok := was.(*storagev1.CSINode); ok {
				if b, ok := is.(*storagev1.CSINode); ok {
					c.onCSINode(a, b)
				}
			}
		},
	})
	return synced, unsubscribe, err
}
