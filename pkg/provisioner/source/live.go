package source

import (
	"context"
	"fmt"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// DefaultTimeout bounds one request to the API server.
const DefaultTimeout = 15 * time.Second

// live reads and writes at the API server. The dynamic client gives and takes
// objects whole: an update loses no field that this build does not know, and
// needs no other permission than external-provisioner's.
type live struct {
	client  dynamic.Interface
	timeout time.Duration
}

// resource is the client of one kind; the namespace is empty where there is none.
func (l live) resource(gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return l.client.Resource(gvr)
	}
	return l.client.Resource(gvr).Namespace(namespace)
}

func (l live) get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.resource(gvr, namespace).Get(ctx, name, metav1.GetOptions{})
}

// update replaces exactly the version that was read; any other is a conflict.
func (l live) update(ctx context.Context, k key, obj *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	_, err := l.resource(k.resource(), k.namespace).Update(ctx, obj, metav1.UpdateOptions{FieldManager: fieldManager})
	return err
}

// list is one page of a list over all namespaces.
func (l live) list(ctx context.Context, gvr schema.GroupVersionResource, page string) (*unstructured.UnstructuredList, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	return l.client.Resource(gvr).List(ctx, metav1.ListOptions{Limit: pageSize, Continue: page})
}

func (l live) snapshot(ctx context.Context, k key) (*snapshotv1.VolumeSnapshot, error) {
	return typed[snapshotv1.VolumeSnapshot](ctx, l, snapshotResource, k.namespace, k.name, k.String())
}

func (l live) content(ctx context.Context, name string) (*snapshotv1.VolumeSnapshotContent, error) {
	return typed[snapshotv1.VolumeSnapshotContent](ctx, l, contentResource, "", name, "VolumeSnapshotContent "+name)
}

// typed reads an object and gives it its type.
func typed[T any](ctx context.Context, l live, gvr schema.GroupVersionResource, namespace, name, what string) (*T, error) {
	u, err := l.get(ctx, gvr, namespace, name)
	if err != nil {
		return nil, readError(err, what, gvr.GroupResource())
	}
	obj := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
		return nil, fmt.Errorf("reading %s: %w", what, err)
	}
	return obj, nil
}
