package attach

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// errNoSecret: without it the driver cannot be called.
var errNoSecret = errors.New("the secret does not exist")

// secretRetryMax is the longest pause before a secret that was missing is looked
// for again.
const secretRetryMax = 30 * time.Second

// resolve tells which volume on which node a VolumeAttachment speaks of. The
// error is for people: nothing but a change of the PersistentVolume mends it.
func (c *Controller) resolve(va *storagev1.VolumeAttachment) (resolution, error) {
	pv, err := c.sourceOf(va)
	recorded := volume.Handle(va.Annotations[AnnotationHandle])
	switch {
	case recorded != "" && hasFinalizer(va.Finalizers, c.finalizer):
		// What it was published as counts, whatever has become of the
		// PersistentVolume: it may be gone, or made again for another volume.
		exclusive := err != nil || pv.Spec.CSI == nil || pv.Spec.CSI.VolumeHandle != string(recorded) || volume.Exclusive(pv)
		return resolution{ok: true, exclusive: exclusive, key: volume.Key{Handle: recorded, Node: va.Spec.NodeName}}, nil //nolint:nilerr // see above
	case apierrors.IsNotFound(err):
		return resolution{}, fmt.Errorf("PersistentVolume %s does not exist", pvName(va))
	case err != nil:
		return resolution{}, err
	}
	if err := c.ours(pv); err != nil {
		return resolution{}, err
	}
	return resolution{ok: true, exclusive: volume.Exclusive(pv), key: volume.Key{Handle: volume.Handle(pv.Spec.CSI.VolumeHandle), Node: va.Spec.NodeName}}, nil
}

// ours tells why a PersistentVolume is none of this driver's, or nil.
func (c *Controller) ours(pv *v1.PersistentVolume) error {
	switch {
	case pv.Spec.CSI == nil:
		return fmt.Errorf("PersistentVolume %s is not a CSI volume", pv.Name)
	case pv.Spec.CSI.Driver != c.cfg.DriverName:
		return fmt.Errorf("PersistentVolume %s belongs to driver %s, not %s", pv.Name, pv.Spec.CSI.Driver, c.cfg.DriverName)
	case pv.Spec.CSI.VolumeHandle == "":
		return fmt.Errorf("PersistentVolume %s has no volume handle", pv.Name)
	default:
		return nil
	}
}

// facts reads from the listers what a decision about the key depends on.
func (c *Controller) facts(k volume.Key) facts {
	f := facts{shared: map[string]bool{}}
	for _, name := range c.ledger.sourcesOf(k) {
		pv, err := c.source(name)
		f.shared[name] = err == nil && pv.Spec.CSI != nil && pv.Spec.CSI.VolumeHandle == string(k.Handle) && !volume.Exclusive(pv)
	}
	f.nodeID, _ = c.nodeID(k.Node)
	if node, err := c.nodes.Get(k.Node); err == nil {
		f.held = heldOn(node, c.cfg.DriverName, k.Handle)
	}
	return f
}

// heldOn reports whether the Node's hold keeps the volume away from it. A hold
// that cannot be read keeps all away.
func heldOn(node *v1.Node, driver string, h volume.Handle) bool {
	value, ok := node.Annotations[volume.HoldKey(driver)]
	if !ok {
		return false
	}
	rec, err := volume.ParseHoldRecord(value)
	if err != nil {
		return true
	}
	for _, held := range rec.Volumes {
		if held.Handle == h && held.Fenced {
			return true
		}
	}
	return false
}

// nodeID is the ID that the driver's node plugin gave the node.
func (c *Controller) nodeID(node string) (string, error) {
	csiNode, err := c.csiNodes.Get(node)
	if err != nil {
		if apierrors.IsNotFound(err) {
			return "", fmt.Errorf("CSINode %s does not exist: the driver's node plugin is not registered there", node)
		}
		return "", fmt.Errorf("reading CSINode %s: %w", node, err)
	}
	for i := range csiNode.Spec.Drivers {
		if d := &csiNode.Spec.Drivers[i]; d.Name == c.cfg.DriverName && d.NodeID != "" {
			return d.NodeID, nil
		}
	}
	return "", fmt.Errorf("CSINode %s has no node ID for driver %s: its node plugin is not registered there", node, c.cfg.DriverName)
}

// publishRequest makes the request; it reads the secret live.
func (c *Controller) publishRequest(ctx context.Context, pv *v1.PersistentVolume, nodeID string) (*csi.ControllerPublishVolumeRequest, error) {
	caps := c.cfg.Capabilities()
	capability, err := volumeCapability(pv, c.cfg.DefaultFSType, caps.SingleNodeMultiWriter)
	if err != nil {
		return nil, err
	}
	secrets, err := c.secrets(ctx, pv)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerPublishVolumeRequest{
		VolumeId:         pv.Spec.CSI.VolumeHandle,
		NodeId:           nodeID,
		VolumeCapability: capability,
		Readonly:         pv.Spec.CSI.ReadOnly && caps.PublishReadOnly,
		VolumeContext:    pv.Spec.CSI.VolumeAttributes,
		Secrets:          secrets,
	}, nil
}

// volumeCapability tells CSI how a PersistentVolume is to be used.
func volumeCapability(pv *v1.PersistentVolume, defaultFSType string, singleNodeMultiWriter bool) (*csi.VolumeCapability, error) {
	mode, err := accessmodes.ToCSIAccessMode(pv.Spec.AccessModes, singleNodeMultiWriter)
	if err != nil {
		return nil, fmt.Errorf("access modes of PersistentVolume %s: %w", pv.Name, err)
	}
	vc := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
	if pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock {
		vc.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		return vc, nil
	}
	fsType := pv.Spec.CSI.FSType
	if fsType == "" {
		fsType = defaultFSType
	}
	vc.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: pv.Spec.MountOptions}}
	return vc, nil
}

// secrets reads the secret that publish and unpublish of a volume need, or nil.
// It is never kept, and never part of an error.
func (c *Controller) secrets(ctx context.Context, pv *v1.PersistentVolume) (map[string]string, error) {
	ref := pv.Spec.CSI.ControllerPublishSecretRef
	if ref == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	secret, err := c.cfg.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("%w: make %s/%s, which the PersistentVolume names for the driver", errNoSecret, ref.Namespace, ref.Name)
	case err != nil:
		return nil, fmt.Errorf("reading secret %s/%s for the driver: %w", ref.Namespace, ref.Name, err)
	}
	data := make(map[string]string, len(secret.Data))
	for k, v := range secret.Data {
		data[k] = string(v)
	}
	return data, nil
}
