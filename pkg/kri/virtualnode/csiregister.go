package virtualnode

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/csinode"
)

// registerDriver waits for a driver to answer, makes it usable, and keeps it
// entered in the API until ctx ends.
func (a *Agent) registerDriver(ctx context.Context, client *csinode.Client) {
	var info csinode.Info
	known := a.node.retry(ctx, "CSI driver does not answer yet, will retry", func(ctx context.Context) (err error) {
		info, err = client.Describe(ctx)
		return err
	})
	if !known {
		return
	}
	// What is mounted already can be unmounted from now on, API or no API.
	a.drivers.Add(csinode.Driver{Client: client, Info: info})
	select {
	case <-a.node.registered:
	case <-ctx.Done():
		return
	}
	ticker := a.cfg.Clock.NewTicker(csiNodeCheck)
	defer ticker.Stop()
	for told := false; ; {
		registered := a.node.retry(ctx, "Registering the CSI driver failed, will retry", func(ctx context.Context) error {
			a.csiNode.Lock()
			defer a.csiNode.Unlock()
			return a.registerCSINode(ctx, info)
		})
		if registered && !told {
			told = true
			klog.FromContext(ctx).Info("Registered the CSI driver", "driver", info.Name, "nodeID", info.NodeID, "endpoint", client.Endpoint())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

// csiNodeCheck is how often the entry is looked at again: a CSINode goes with its
// Node when that is deleted, some time after the Node was registered anew.
const csiNodeCheck = 10 * time.Second

// registerCSINode enters the driver in the node's CSINode, and its topology in
// the node's labels.
func (a *Agent) registerCSINode(ctx context.Context, info csinode.Info) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.APITimeout)
	defer cancel()
	node, err := a.labelTopology(ctx, info)
	if err != nil {
		return err
	}
	csiNodes := a.cfg.Client.StorageV1().CSINodes()
	current, err := csiNodes.Get(ctx, a.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		current = &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
			Name: a.cfg.Name, OwnerReferences: []metav1.OwnerReference{nodeOwner(node)},
		}}
		current.Spec.Drivers = withDriver(nil, csiNodeDriver(info))
		_, err = csiNodes.Create(ctx, current, metav1.CreateOptions{})
		return wrap("creating CSINode", err)
	}
	if err != nil {
		return fmt.Errorf("reading CSINode: %w", err)
	}
	drivers := withDriver(current.Spec.Drivers, csiNodeDriver(info))
	if equality.Semantic.DeepEqual(drivers, current.Spec.Drivers) {
		return nil
	}
	// An entry cannot be changed, only removed and made anew.
	if without := withoutDriver(current.Spec.Drivers, info.Name); len(without) < len(current.Spec.Drivers) {
		current.Spec.Drivers = without
		if current, err = csiNodes.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("removing the old entry of driver %s from CSINode: %w", info.Name, err)
		}
	}
	current.Spec.Drivers = drivers
	_, err = csiNodes.Update(ctx, current, metav1.UpdateOptions{})
	return wrap("updating CSINode", err)
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func csiNodeDriver(info csinode.Info) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: info.Name, NodeID: info.NodeID, TopologyKeys: slices.Sorted(maps.Keys(info.Topology))}
	if info.MaxVolumes > 0 {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(int32(info.MaxVolumes))}
	}
	return d
}

// withDriver returns the list with d in the place of an entry of its name.
func withDriver(list []storagev1.CSINodeDriver, d storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
	out := slices.Clone(list)
	if i := slices.IndexFunc(out, func(o storagev1.CSINodeDriver) bool { return o.Name == d.Name }); i >= 0 {
		out[i] = d
		return out
	}
	return append(out, d)
}

func withoutDriver(list []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(list), func(o storagev1.CSINodeDriver) bool { return o.Name == name })
}

// labelTopology writes where the driver says that the node is into the node's
// labels. A label that says otherwise stays, and the driver is not registered,
// as with the kubelet: the scheduler would take the node for another place.
func (a *Agent) labelTopology(ctx context.Context, info csinode.Info) (*v1.Node, error) {
	nodes := a.cfg.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, a.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the node: %w", err)
	}
	missing, err := missingLabels(node.Labels, info)
	if err != nil {
		return nil, err
	}
	if len(missing) == 0 {
		return node, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": missing}})
	if err != nil {
		return nil, fmt.Errorf("encoding the topology of driver %s: %w", info.Name, err)
	}
	node, err = nodes.Patch(ctx, a.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	return node, wrap("labelling the node with the topology of driver "+info.Name, err)
}

// missingLabels are the labels that the node lacks.
func missingLabels(labels map[string]string, info csinode.Info) (map[string]string, error) {
	missing := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(info.Topology)) {
		value := info.Topology[key]
		is, labelled := labels[key]
		switch {
		case !labelled:
			missing[key] = value
		case is != value:
			return nil, fmt.Errorf("the node's label %s is %q, and driver %s says %q: correct the label or the driver's topology",
				key, is, info.Name, value)
		}
	}
	return missing, nil
}
