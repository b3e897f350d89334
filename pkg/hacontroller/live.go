package hacontroller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
)

// live is one node as it was read just now, past every cache.
type live struct {
	// node is nil when the Node object does not exist; hold is what is on it.
	node *v1.Node
	hold hold
	pods map[types.UID]*v1.Pod
	// uses are the names of the PersistentVolumes that each pod uses.
	uses map[types.UID]map[string]bool

	mu  sync.Mutex
	vas map[types.UID]*storagev1.VolumeAttachment
	// read are the names of the attachments that were looked for.
	read []string
}

// attachments are the attachments that exist, in the order of their names.
func (l *live) attachments() []*storagev1.VolumeAttachment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.SortedFunc(maps.Values(l.vas), func(a, b *storagev1.VolumeAttachment) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// putNode keeps what a read or a write answered.
func (l *live) putNode(node *v1.Node, driver string) {
	l.node, l.hold = node, holdOn(node, driver)
}

// putVA keeps what a write answered, which is as good as a read.
func (l *live) putVA(va *storagev1.VolumeAttachment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vas[va.UID] = va
}

// readLive reads the node, all its pods in one list, and the attachments, all
// at once: it stands before every step, so it is on the way of every failover.
func (hac *haController) readLive(ctx context.Context, node string, vaNames []string) (*live, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	l := &live{read: vaNames, pods: map[types.UID]*v1.Pod{}, uses: map[types.UID]map[string]bool{}, vas: map[types.UID]*storagev1.VolumeAttachment{}}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(callsPerNode)
	g.Go(func() error {
		read, err := hac.liveNode(ctx, node)
		if read != nil {
			l.putNode(read, hac.driver)
		}
		return err
	})
	g.Go(func() error {
		pods, err := hac.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		})
		if err != nil {
			return fmt.Errorf("listing the pods of node %s: %w", node, err)
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Spec.NodeName == node {
				l.pods[pod.UID] = pod
				l.uses[pod.UID] = hac.volumesOf(pod)
			}
		}
		return nil
	})
	if hac.listPays(len(vaNames)) {
		g.Go(func() error { return hac.listVAs(ctx, l) })
	} else {
		for _, name := range vaNames {
			g.Go(func() error { return hac.readVA(ctx, l, name) })
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return l, nil
}

// readMore reads the attachments that l did not look for yet.
func (hac *haController) readMore(ctx context.Context, l *live, names []string) error {
	for _, name := range names {
		if slices.Contains(l.read, name) {
			continue
		}
		if err := hac.readVA(ctx, l, name); err != nil {
			return err
		}
	}
	return nil
}

const (
	// listFrom is from how many attachments on a list may be cheaper than reading
	// each, and listShare how many of it may then be read in vain for each.
	listFrom  = 4
	listShare = 20
)

// listPays reports whether one list of all VolumeAttachments, which cannot be
// selected by node, costs the API server less than n reads.
func (hac *haController) listPays(n int) bool {
	return n >= listFrom && len(hac.caches.vas.GetStore().ListKeys()) <= n*listShare
}

// listVAs puts those that l looks for into l.
func (hac *haController) listVAs(ctx context.Context, l *live) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	vas, err := hac.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing VolumeAttachments: %w", err)
	}
	for i := range vas.Items {
		if va := &vas.Items[i]; slices.Contains(l.read, va.Name) {
			l.putVA(va)
		}
	}
	return nil
}

// readVA puts one into l, if it exists.
func (hac *haController) readVA(ctx context.Context, l *live, name string) error {
	va, err := hac.liveVA(ctx, name)
	if err == nil && va != nil {
		l.putVA(va)
	}
	return err
}

// liveNode reads one Node; nil where there is none.
func (hac *haController) liveNode(ctx context.Context, name string) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	node, err := hac.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading node %s: %w", name, err)
	}
	return node, nil
}

// liveVA reads one VolumeAttachment; nil where there is none.
func (hac *haController) liveVA(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
	defer cancel()
	va, err := hac.client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading VolumeAttachment %s: %w", name, err)
	}
	return va, nil
}
