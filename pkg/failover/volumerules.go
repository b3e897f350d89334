package failover

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// attacherFinalizer starts the finalizer that says "this may be published":
// it is written before ControllerPublishVolume is called.
const attacherFinalizer = "external-attacher/"

// checkVolumes asks of every volume of the closure whether it is what it seems,
// whether it is attached, and whether it is of use anywhere.
func (d *decider) checkVolumes(a *Answer, c *closure) {
	d.checkHandles(a, c)
	for _, m := range c.volumes {
		d.checkClaim(a, m.pv)
		d.checkAttachment(a, c, m)
		d.checkUsable(a, m)
	}
}

// checkHandles refuses volumes that share a handle: which of them a fence would
// take it from is not to be told.
func (d *decider) checkHandles(a *Answer, c *closure) {
	seen := map[volume.Handle]bool{}
	for _, m := range c.volumes {
		handle := volume.Handle(m.pv.Spec.CSI.VolumeHandle)
		if names := d.pvByHandle[handle]; len(names) > 1 && !seen[handle] {
			seen[handle] = true
			a.add(ActionRefuse, CodeAmbiguousHandle, time.Time{}, fmt.Sprintf("the PersistentVolumes %s share one handle, so their attachments cannot be told apart; keep one of them", strings.Join(names, ", ")))
		}
	}
}

// checkClaim refuses a PersistentVolume and a claim that do not point at each
// other: whose data it is would be a guess.
func (d *decider) checkClaim(a *Answer, pv *v1.PersistentVolume) {
	ref := pv.Spec.ClaimRef
	if ref == nil {
		a.add(ActionRefuse, CodeClaimMismatch, time.Time{}, "PersistentVolume "+pv.Name+" is not bound to a claim")
		return
	}
	pvc := d.s.Claims[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]
	switch {
	case pvc == nil:
		a.add(ActionWait, CodeClaimMissing, time.Time{}, fmt.Sprintf("the claim %s/%s of PersistentVolume %s is not there", ref.Namespace, ref.Name, pv.Name))
	case pvc.UID != ref.UID:
		a.add(ActionRefuse, CodeClaimMismatch, time.Time{}, fmt.Sprintf("PersistentVolume %s is bound to an earlier claim of the name %s/%s; bind it again", pv.Name, ref.Namespace, ref.Name))
	case pvc.Spec.VolumeName != pv.Name:
		a.add(ActionRefuse, CodeClaimMismatch, time.Time{}, fmt.Sprintf("the claim %s/%s names volume %q and not PersistentVolume %s, which names it; bind it again", ref.Namespace, ref.Name, pvc.Spec.VolumeName, pv.Name))
	}
}

// checkAttachment asks for a VolumeAttachment that a fence can work with: one
// that the driver has published or may have.
func (d *decider) checkAttachment(a *Answer, c *closure, m *member) {
	va := m.attachment
	switch {
	case va == nil:
		a.add(ActionWait, CodeAttachmentMissing, time.Time{}, fmt.Sprintf("PersistentVolume %s has no VolumeAttachment on node %s, so it cannot be fenced there; Kubernetes makes it again while a pod uses the volume", m.pv.Name, c.node))
	case volume.Fenced(va):
		a.add(ActionWait, CodeInProgress, time.Time{}, fmt.Sprintf("VolumeAttachment %s is being fenced already", va.Name))
	case !va.Status.Attached && !mayBePublished(va):
		a.add(ActionWait, CodeAttachmentMissing, time.Time{}, fmt.Sprintf("VolumeAttachment %s of PersistentVolume %s was never attached", va.Name, m.pv.Name))
	}
}

func mayBePublished(va *storagev1.VolumeAttachment) bool {
	for _, finalizer := range va.Finalizers {
		if strings.HasPrefix(finalizer, attacherFinalizer) {
			return true
		}
	}
	return false
}

// checkUsable asks whether the volume can be used from anywhere at all: the
// worst of two verdicts is taken for true.
func (d *decider) checkUsable(a *Answer, m *member) {
	handle := volume.Handle(m.pv.Spec.CSI.VolumeHandle)
	keys := []volume.Key{{Handle: handle}}
	if a.Key.Node != "" {
		keys = append(keys, volume.Key{Handle: handle, Node: a.Key.Node})
	}
	for _, key := range keys {
		v, ok := d.verdicts[key]
		switch {
		case !ok:
		case v.State == volume.StateDataLoss:
			a.add(ActionRefuse, CodeVolumeUnusable, time.Time{}, fmt.Sprintf("PersistentVolume %s has lost data%s; its pod would not be better off elsewhere", m.pv.Name, detail(v)))
		case v.State == volume.StateInaccessible && key.Everywhere() && v.Confirmed:
			a.add(ActionRefuse, CodeVolumeUnusable, time.Time{}, fmt.Sprintf("PersistentVolume %s may be inaccessible from every node%s; look at the storage itself", m.pv.Name, detail(v)))
		case v.State == volume.StateInaccessible && key.Everywhere():
			a.add(ActionWait, CodeMaybeEverywhere, time.Time{}, fmt.Sprintf("PersistentVolume %s may be inaccessible from every node%s, which is not confirmed yet", m.pv.Name, detail(v)))
		}
	}
}
