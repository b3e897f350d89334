package kube

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/informers"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// NewInformers returns the one factory of the process. Nothing is resynced:
// what must happen later has its own timer.
func NewInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(Trim))
}

// NewLeaseInformer watches the heartbeats of nodes and no other lease.
func NewLeaseInformer(client kubernetes.Interface) (cache.SharedIndexInformer, error) {
	inf := coordinationinformers.NewLeaseInformer(client, v1.NamespaceNodeLease, 0, cache.Indexers{})
	if err := inf.SetTransform(Trim); err != nil {
		return nil, fmt.Errorf("setting the transform of the lease informer: %w", err)
	}
	return inf, nil
}

// Trim drops what nobody here reads before an object enters a cache: for pods
// that is most of their size.
func Trim(obj any) (any, error) {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return obj, nil //nolint:nilerr // a DeletedFinalStateUnknown carries a trimmed object
	}
	accessor.SetManagedFields(nil)
	if annotations := accessor.GetAnnotations(); annotations != nil {
		delete(annotations, v1.LastAppliedConfigAnnotation)
	}
	switch o := obj.(type) {
	case *v1.Pod:
		trimPod(o)
	case *v1.Node:
		o.Status.Images = nil
	}
	return obj, nil
}

func trimPod(pod *v1.Pod) {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i] = v1.Container{Name: list[i].Name, VolumeMounts: list[i].VolumeMounts, VolumeDevices: list[i].VolumeDevices}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		*c = v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{
			Name: c.Name, VolumeMounts: c.VolumeMounts, VolumeDevices: c.VolumeDevices,
		}}
	}
	pod.Spec.HostAliases, pod.Spec.ImagePullSecrets, pod.Spec.DNSConfig = nil, nil, nil
	pod.Status.InitContainerStatuses = nil
	pod.Status.EphemeralContainerStatuses = nil
	for i := range pod.Status.ContainerStatuses {
		s := &pod.Status.ContainerStatuses[i]
		*s = v1.ContainerStatus{Name: s.Name, State: s.State, Started: s.Started, Ready: s.Ready}
	}
}
