package failover

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Indexes of this package on the shared informers: a look concerns a few nodes
// and must not walk through all pods of the cluster.
const (
	indexPodNode  = "failover-pod-node"
	indexVANode   = "failover-attachment-node"
	indexPVHandle = "failover-volume-handle"
)

// gatherer reads snapshots out of the informers' caches.
type gatherer struct {
	driver      string
	pods        cache.Indexer
	attachments cache.Indexer
	volumes     cache.Indexer
	claims      corelisters.PersistentVolumeClaimLister
	nodes       corelisters.NodeLister
	namespaces  corelisters.NamespaceLister
	csiNodes    storagelisters.CSINodeLister
	csiDrivers  storagelisters.CSIDriverLister
}

// newGatherer takes the informers and adds the indexes to them.
func newGatherer(driver string, f informers.SharedInformerFactory) (*gatherer, error) {
	core, storage := f.Core().V1(), f.Storage().V1()
	pods, vas, pvs := core.Pods().Informer(), storage.VolumeAttachments().Informer(), core.PersistentVolumes().Informer()
	for _, index := range []struct {
		informer cache.SharedIndexInformer
		name     string
		key      func(obj any) string
	}{
		{pods, indexPodNode, func(obj any) string {
			if pod, ok := obj.(*v1.Pod); ok {
				return pod.Spec.NodeName
			}
			return ""
		}},
		{vas, indexVANode, func(obj any) string {
			if va, ok := obj.(*storagev1.VolumeAttachment); ok && va.Spec.Attacher == driver {
				return va.Spec.NodeName
			}
			return ""
		}},
		{pvs, indexPVHandle, func(obj any) string {
			if pv, ok := obj.(*v1.PersistentVolume); ok && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver {
				return pv.Spec.CSI.VolumeHandle
			}
			return ""
		}},
	} {
		err := index.informer.AddIndexers(cache.Indexers{index.name: func(obj any) ([]string, error) {
			if key := index.key(obj); key != "" {
				return []string{key}, nil
			}
			return nil, nil
		}})
		if err != nil {
			return nil, fmt.Errorf("adding index %s: %w", index.name, err)
		}
	}
	return &gatherer{
		driver: driver,
		pods:   pods.GetIndexer(), attachments: vas.GetIndexer(), volumes: pvs.GetIndexer(),
		claims: core.PersistentVolumeClaims().Lister(), nodes: core.Nodes().Lister(), namespaces: core.Namespaces().Lister(),
		csiNodes: storage.CSINodes().Lister(), csiDrivers: storage.CSIDrivers().Lister(),
	}, nil
}

// gather builds the snapshot for the verdicts. A cache that cannot be read
// leaves Synced false; a missing object is simply not in the snapshot.
func (g *gatherer) gather(p Policy, started time.Time, verdicts []volume.Verdict, m Memory) (Snapshot, error) {
	s := Snapshot{
		Policy: p, Synced: true, Started: started, Verdicts: verdicts, Memory: m,
		Nodes: map[string]*v1.Node{}, CSINodes: map[string]*storagev1.CSINode{}, Namespaces: map[string]*v1.Namespace{},
		Volumes: map[string]*v1.PersistentVolume{}, Claims: map[types.NamespacedName]*v1.PersistentVolumeClaim{},
		Pods: map[string][]*v1.Pod{}, Attachments: map[string][]*storagev1.VolumeAttachment{},
	}
	if err := g.cluster(&s); err != nil {
		return s, err
	}
	for _, v := range verdicts {
		if err := g.byHandle(&s, v.Key.Handle); err != nil {
			return s, err
		}
		if _, done := s.Pods[v.Key.Node]; done || v.Key.Everywhere() || v.State != volume.StateInaccessible {
			continue
		}
		if err := g.onNode(&s, v.Key.Node); err != nil {
			return s, err
		}
	}
	for _, pv := range slices.Collect(maps.Values(s.Volumes)) {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != g.driver {
			continue
		}
		if err := g.byHandle(&s, volume.Handle(pv.Spec.CSI.VolumeHandle)); err != nil {
			return s, err
		}
	}
	for _, pv := range slices.Collect(maps.Values(s.Volumes)) {
		if ref := pv.Spec.ClaimRef; ref != nil {
			if err := g.claim(&s, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

// cluster reads what the brakes and the choice of another node need.
func (g *gatherer) cluster(s *Snapshot) error {
	nodes, err := g.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for _, node := range nodes {
		s.Nodes[node.Name] = node
	}
	csiNodes, err := g.csiNodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing CSINodes: %w", err)
	}
	for _, csiNode := range csiNodes {
		s.CSINodes[csiNode.Name] = csiNode
	}
	s.CSIDriver, err = get(g.csiDrivers.Get(g.driver))
	return err
}

// onNode reads the pods and attachments of a node, and what they refer to.
func (g *gatherer) onNode(s *Snapshot, node string) error {
	s.Pods[node] = nil
	pods, err := g.pods.ByIndex(indexPodNode, node)
	if err != nil {
		return fmt.Errorf("looking up the pods of node %s: %w", node, err)
	}
	for _, obj := range pods {
		pod, ok := obj.(*v1.Pod)
		if !ok {
			continue
		}
		s.Pods[node] = append(s.Pods[node], pod)
		if s.Namespaces[pod.Namespace] == nil {
			ns, err := get(g.namespaces.Get(pod.Namespace))
			if err != nil {
				return err
			}
			if ns != nil {
				s.Namespaces[pod.Namespace] = ns
			}
		}
		for _, claim := range kube.ClaimNames(pod) {
			if err := g.claim(s, types.NamespacedName{Namespace: pod.Namespace, Name: claim}); err != nil {
				return err
			}
		}
	}
	vas, err := g.attachments.ByIndex(indexVANode, node)
	if err != nil {
		return fmt.Errorf("looking up the VolumeAttachments of node %s: %w", node, err)
	}
	for _, obj := range vas {
		if va, ok := obj.(*storagev1.VolumeAttachment); ok {
			s.Attachments[node] = append(s.Attachments[node], va)
		}
	}
	return nil
}

// claim reads a claim and the volume that it names.
func (g *gatherer) claim(s *Snapshot, key types.NamespacedName) error {
	if s.Claims[key] != nil {
		return nil
	}
	pvc, err := get(g.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name))
	if err != nil || pvc == nil {
		return err
	}
	s.Claims[key] = pvc
	if pvc.Spec.VolumeName == "" {
		return nil
	}
	obj, ok, err := g.volumes.GetByKey(pvc.Spec.VolumeName)
	if err != nil {
		return fmt.Errorf("looking up PersistentVolume %s: %w", pvc.Spec.VolumeName, err)
	}
	if pv, isPV := obj.(*v1.PersistentVolume); ok && isPV {
		s.Volumes[pv.Name] = pv
	}
	return nil
}

// byHandle reads the volumes of a handle.
func (g *gatherer) byHandle(s *Snapshot, handle volume.Handle) error {
	pvs, err := g.volumes.ByIndex(indexPVHandle, string(handle))
	if err != nil {
		return fmt.Errorf("looking up the PersistentVolumes of handle %s: %w", handle, err)
	}
	for _, obj := range pvs {
		if pv, ok := obj.(*v1.PersistentVolume); ok {
			s.Volumes[pv.Name] = pv
		}
	}
	return nil
}

// get takes "not found" for nil.
func get[T any](obj *T, err error) (*T, error) {
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading a cache: %w", err)
	}
	return obj, nil
}

// driverUID is the UID of the CSIDriver, empty where there is none.
func (g *gatherer) driverUID() types.UID {
	driver, err := g.csiDrivers.Get(g.driver)
	if err != nil {
		return ""
	}
	return driver.UID
}
