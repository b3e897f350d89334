package hacontroller

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// The indices carry the package's name: other controllers may index the same
// shared informers.
const (
	podsByClaim = "hacontroller/claim"
	claimsByPV  = "hacontroller/pv"
	vasByPV     = "hacontroller/pv"
	vasByNode   = "hacontroller/node"
)

// caches are what is known without asking. They find names; whether to act on
// those is decided by live reads.
type caches struct {
	pods   cache.SharedIndexInformer
	claims cache.SharedIndexInformer
	vas    cache.SharedIndexInformer
	// nodes and pvs are nil when the sender vouches: neither is read then.
	nodes      cache.SharedIndexInformer
	nodeLister corelisters.NodeLister
	pvLister   corelisters.PersistentVolumeLister
	pvs        cache.SharedIndexInformer
}

func newCaches(factory informers.SharedInformerFactory, withTargets bool) (caches, error) {
	c := caches{
		pods:   factory.Core().V1().Pods().Informer(),
		claims: factory.Core().V1().PersistentVolumeClaims().Informer(),
		vas:    factory.Storage().V1().VolumeAttachments().Informer(),
	}
	if withTargets {
		c.nodes = factory.Core().V1().Nodes().Informer()
		c.nodeLister = factory.Core().V1().Nodes().Lister()
		c.pvs = factory.Core().V1().PersistentVolumes().Informer()
		c.pvLister = factory.Core().V1().PersistentVolumes().Lister()
	}
	for _, add := range []struct {
		informer cache.SharedIndexInformer
		indexers cache.Indexers
	}{
		{c.pods, cache.Indexers{podsByClaim: indexPodByClaim}},
		{c.claims, cache.Indexers{claimsByPV: indexClaimByPV}},
		{c.vas, cache.Indexers{vasByPV: indexVAByPV, vasByNode: indexVAByNode}},
	} {
		if err := add.informer.AddIndexers(add.indexers); err != nil {
			return caches{}, fmt.Errorf("hacontroller: indexing an informer: %w", err)
		}
	}
	return c, nil
}

// stripManagedFields keeps out of memory what nobody here reads.
func stripManagedFields(obj any) (any, error) {
	// What has none is not written to: a fake clientset hands out its own object.
	if o, ok := obj.(metav1.Object); ok && len(o.GetManagedFields()) > 0 {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

func indexPodByClaim(obj any) ([]string, error) {
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return nil, nil
	}
	var keys []string
	for _, claim := range kube.ClaimNames(pod) {
		keys = append(keys, pod.Namespace+"/"+claim)
	}
	return keys, nil
}

func indexClaimByPV(obj any) ([]string, error) {
	if claim, ok := obj.(*v1.PersistentVolumeClaim); ok && claim.Spec.VolumeName != "" {
		return []string{claim.Spec.VolumeName}, nil
	}
	return nil, nil
}

func indexVAByPV(obj any) ([]string, error) {
	if va, ok := obj.(*storagev1.VolumeAttachment); ok && pvOf(va) != "" {
		return []string{pvOf(va)}, nil
	}
	return nil, nil
}

func indexVAByNode(obj any) ([]string, error) {
	if va, ok := obj.(*storagev1.VolumeAttachment); ok {
		return []string{va.Spec.NodeName}, nil
	}
	return nil, nil
}

// pvOf is the PersistentVolume that va attaches, or "" for an inline volume,
// which no failing name can mean.
func pvOf(va *storagev1.VolumeAttachment) string {
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

// attachments lists the driver's VolumeAttachments under an index value.
func (hac *haController) attachments(index, value string) []*storagev1.VolumeAttachment {
	objs, err := hac.caches.vas.GetIndexer().ByIndex(index, value)
	if err != nil {
		return nil // the index is ours and exists
	}
	vas := make([]*storagev1.VolumeAttachment, 0, len(objs))
	for _, obj := range objs {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok && (hac.driver == "" || va.Spec.Attacher == hac.driver) {
			vas = append(vas, va)
		}
	}
	return vas
}

// users lists the pods that use pv, on whatever node, and whether any claim is
// bound to it.
func (hac *haController) users(pv string) (pods []*v1.Pod, claimed bool) {
	claims, err := hac.caches.claims.GetIndexer().IndexKeys(claimsByPV, pv)
	if err != nil {
		return nil, false // the index is ours and exists
	}
	for _, claim := range claims {
		objs, err := hac.caches.pods.GetIndexer().ByIndex(podsByClaim, claim)
		if err != nil {
			continue
		}
		for _, obj := range objs {
			if pod, ok := obj.(*v1.Pod); ok {
				pods = append(pods, pod)
			}
		}
	}
	return pods, len(claims) > 0
}

// volumesOf names the PersistentVolumes that pod uses. Claims are bound once and
// for all, so the cache is good enough. Anybody may make a claim that names a
// PersistentVolume; it is used by the one that the PersistentVolume names too.
func (hac *haController) volumesOf(pod *v1.Pod) map[string]bool {
	pvs := map[string]bool{}
	for _, claim := range kube.ClaimNames(pod) {
		obj, ok, err := hac.caches.claims.GetIndexer().GetByKey(pod.Namespace + "/" + claim)
		if err != nil || !ok {
			continue
		}
		if c, ok := obj.(*v1.PersistentVolumeClaim); ok && c.Spec.VolumeName != "" && !hac.boundToAnother(c) {
			pvs[c.Spec.VolumeName] = true
		}
	}
	return pvs
}

// boundToAnother reports whether the PersistentVolume that claim names is known
// to be bound to another claim.
func (hac *haController) boundToAnother(claim *v1.PersistentVolumeClaim) bool {
	if hac.caches.pvLister == nil {
		return false
	}
	pv, err := hac.caches.pvLister.Get(claim.Spec.VolumeName)
	if err != nil || pv.Spec.ClaimRef == nil {
		return false
	}
	ref := pv.Spec.ClaimRef
	return ref.Namespace != claim.Namespace || ref.Name != claim.Name || ref.UID != "" && ref.UID != claim.UID
}

// subscribe makes changes wake the nodes that they concern. The returned
// function undoes it.
func (hac *haController) subscribe() (synced []cache.DoneChecker, unsubscribe func(), err error) {
	var undo []func()
	unsubscribe = func() {
		for _, f := range undo {
			f()
		}
	}
	add := func(informer cache.SharedIndexInformer, wake func(old, obj any)) error {
		reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { wake(nil, obj) },
			UpdateFunc: wake,
			DeleteFunc: func(obj any) {
				if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = gone.Obj
				}
				hac.forget(obj)
				wake(nil, obj)
			},
		})
		if err != nil {
			return fmt.Errorf("watching: %w", err)
		}
		undo = append(undo, func() { _ = informer.RemoveEventHandler(reg) })
		synced = append(synced, reg.HasSyncedChecker())
		return nil
	}
	if err := add(hac.caches.pods, hac.wakePod); err != nil {
		return nil, unsubscribe, err
	}
	if err := add(hac.caches.vas, hac.wakeVA); err != nil {
		return nil, unsubscribe, err
	}
	synced = append(synced, hac.caches.claims.HasSyncedChecker())
	if hac.caches.nodes != nil {
		if err := add(hac.caches.nodes, hac.wakeNode); err != nil {
			return nil, unsubscribe, err
		}
		synced = append(synced, hac.caches.pvs.HasSyncedChecker())
	}
	return synced, unsubscribe, nil
}

func (hac *haController) wakePod(_, obj any) {
	if pod, ok := obj.(*v1.Pod); ok {
		hac.wakeIfActive(pod.Spec.NodeName)
	}
}

// wakeVA resumes a walk whose record is found, whoever wrote it.
func (hac *haController) wakeVA(_, obj any) {
	va, ok := obj.(*storagev1.VolumeAttachment)
	if !ok {
		return
	}
	if hac.targeter != nil && va.Spec.Attacher == hac.driver && volume.Fenced(va) {
		hac.queue.Add(va.Spec.NodeName)
		return
	}
	hac.wakeIfActive(va.Spec.NodeName)
}

// wakeNode looks after nodes that are held, or that a person gave a word about:
// at once where the node's readiness changed, on which the way of a move depends.
// A hold that has come on or grown, mostly by this controller, is no hurry.
func (hac *haController) wakeNode(old, obj any) {
	node, ok := obj.(*v1.Node)
	if !ok {
		return
	}
	key := volume.HoldKey(hac.driver)
	before, known := old.(*v1.Node)
	switch {
	case !held(node, hac.driver) && node.Annotations[volume.AnnotationUnfence] == "":
		hac.wakeIfActive(node.Name)
	case !known || kube.NodeReady(before) != kube.NodeReady(node):
		hac.queue.Add(node.Name)
	case before.Annotations[key] != node.Annotations[key] && slices.ContainsFunc(node.Spec.Taints, isHold(key)):
		hac.queue.AddAfter(node.Name, changesTogether)
	default:
		hac.queue.AddAfter(node.Name, hac.wakePause(node.Name))
	}
}

// forget drops what is remembered about an object that is gone.
func (hac *haController) forget(obj any) {
	if o, ok := obj.(object); ok {
		hac.settle(o)
	}
}
