package capacity

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// FindOwner finds who is to own the objects (--capacity-ownerref-level): for level
// 0 the pod that this process runs in, for 1 what controls it, as a StatefulSet, a
// DaemonSet or a ReplicaSet, for 2 what controls that, as a Deployment, and so on;
// nil for a negative level. With the owner the objects go. It needs get on pods,
// and, above level 1, on the apps between.
func FindOwner(ctx context.Context, client kubernetes.Interface, namespace, pod string, level int) (*metav1.OwnerReference, error) {
	if level < 0 {
		return nil, nil
	}
	object, err := client.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting pod %s/%s, which is to lead to the owner of CSIStorageCapacity objects: %w", namespace, pod, err)
	}
	owner := &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: object.Name, UID: object.UID}
	for at := 1; at <= level; at++ {
		var controller *metav1.OwnerReference
		if at == 1 {
			controller = metav1.GetControllerOf(object)
		} else if controller, err = controllerOf(ctx, client, namespace, owner); err != nil {
			return nil, err
		}
		if controller == nil {
			return nil, fmt.Errorf("nothing controls %s %s/%s, so CSIStorageCapacity objects have no owner at level %d above pod %s: set --capacity-ownerref-level to %d at most", owner.Kind, namespace, owner.Name, level, pod, at-1)
		}
		owner = &metav1.OwnerReference{APIVersion: controller.APIVersion, Kind: controller.Kind, Name: controller.Name, UID: controller.UID}
	}
	return owner, nil
}

// controllerOf returns what controls an object, nil for none.
func controllerOf(ctx context.Context, client kubernetes.Interface, namespace string, ref *metav1.OwnerReference) (*metav1.OwnerReference, error) {
	var object metav1.Object
	var err error
	apps := client.AppsV1()
	switch ref.APIVersion + "/" + ref.Kind {
	case "apps/v1/ReplicaSet":
		object, err = apps.ReplicaSets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	case "apps/v1/Deployment":
		object, err = apps.Deployments(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	case "apps/v1/StatefulSet":
		object, err = apps.StatefulSets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	case "apps/v1/DaemonSet":
		object, err = apps.DaemonSets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	default:
		return nil, fmt.Errorf("what controls a %s of %s is not known: set --capacity-ownerref-level so that this, %s, is the owner of CSIStorageCapacity objects", ref.Kind, ref.APIVersion, ref.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("getting %s %s/%s, which is to lead to the owner of CSIStorageCapacity objects: %w", ref.Kind, namespace, ref.Name, err)
	}
	if object.GetUID() != ref.UID {
		return nil, fmt.Errorf("%s %s/%s is another one than the pod's owner: it was deleted and made anew", ref.Kind, namespace, ref.Name)
	}
	return metav1.GetControllerOf(object), nil
}
