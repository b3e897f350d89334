package virtualnode

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// leaseKeeper renews the node's Lease. It is never deleted: kube-controller-
// manager has to see it run out.
type leaseKeeper struct {
	cfg    *Config
	latest *coordinationv1.Lease // as the API answered last; nil: read it
}

func newLeaseKeeper(cfg *Config) *leaseKeeper { return &leaseKeeper{cfg: cfg} }

// renew moves renewTime, making or re-reading the Lease where needed.
func (k *leaseKeeper) renew(ctx context.Context) error {
	leases := k.cfg.Client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	if k.latest == nil {
		latest, err := leases.Get(ctx, k.cfg.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return k.create(ctx)
		}
		if err != nil {
			return fmt.Errorf("reading the lease: %w", err)
		}
		k.latest = latest
	}
	lease := k.latest.DeepCopy()
	k.fill(lease)
	latest, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
	if err != nil {
		k.latest = nil // Whatever is there now: read it next time.
		if apierrors.IsNotFound(err) {
			return k.create(ctx)
		}
		return fmt.Errorf("renewing the lease: %w", err)
	}
	k.latest = latest
	return nil
}

func (k *leaseKeeper) create(ctx context.Context) error {
	node, err := k.cfg.Client.CoreV1().Nodes().Get(ctx, k.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the node that owns the lease: %w", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: k.cfg.Name, Namespace: v1.NamespaceNodeLease, OwnerReferences: []metav1.OwnerReference{nodeOwner(node)},
	}}
	k.fill(lease)
	if k.latest, err = k.cfg.Client.CoordinationV1().Leases(v1.NamespaceNodeLease).Create(ctx, lease, metav1.CreateOptions{}); err != nil {
		k.latest = nil
		return fmt.Errorf("creating the lease: %w", err)
	}
	return nil
}

func (k *leaseKeeper) fill(lease *coordinationv1.Lease) {
	lease.Spec.HolderIdentity = ptr.To(k.cfg.Name)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(k.cfg.LeaseDuration.Seconds()))
	lease.Spec.RenewTime = &metav1.MicroTime{Time: k.cfg.Clock.Now()}
}

// nodeOwner makes an object go with the node.
func nodeOwner(node *v1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}
