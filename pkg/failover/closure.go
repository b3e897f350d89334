package failover

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// nodeView is one failing node: its pods, what they use, what is attached.
type nodeView struct {
	name  string
	node  *v1.Node
	ready bool
	// pods are those that have not finished, in order of their names.
	pods []*podView
	// users are the pods by the PV that they use, volumes of our driver only.
	users map[string][]*podView
	// attachments are by PV.
	attachments map[string]*storagev1.VolumeAttachment
}

// podView is a pod and the claims it uses.
type podView struct {
	pod  *v1.Pod
	uses []use
}

// use is a pod's volume that stands for a claim.
type use struct {
	// volume is the pod's own name for it.
	volume string
	claim  types.NamespacedName
	// pv is nil where the claim or its PersistentVolume is not known, or the
	// latter is another claim's.
	pv *v1.PersistentVolume
	// ours is true for a volume of our driver.
	ours bool
}

// closure is what moves together.
type closure struct {
	node    string
	pods    []*podView
	volumes []*member
}

// member is a volume of a closure.
type member struct {
	pv *v1.PersistentVolume
	// attachment is nil where there is none.
	attachment *storagev1.VolumeAttachment
	users      []*podView
}

// view builds the view of a node, once.
func (d *decider) view(name string) *nodeView {
	if view, ok := d.views[name]; ok {
		return view
	}
	view := &nodeView{
		name: name, node: d.s.Nodes[name], ready: nodeReady(d.s.Nodes[name]),
		users:       map[string][]*podView{},
		attachments: map[string]*storagev1.VolumeAttachment{},
	}
	for _, pod := range d.s.Pods[name] {
		if pod.Spec.NodeName == name && !kube.Finished(pod) {
			view.pods = append(view.pods, d.podView(pod))
		}
	}
	slices.SortFunc(view.pods, func(a, b *podView) int {
		return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	for _, p := range view.pods {
		seen := map[string]bool{}
		for _, u := range p.uses {
			if u.ours && !seen[u.pv.Name] {
				seen[u.pv.Name] = true
				view.users[u.pv.Name] = append(view.users[u.pv.Name], p)
			}
		}
	}
	for _, va := range d.s.Attachments[name] {
		source := va.Spec.Source.PersistentVolumeName
		if va.Spec.Attacher == d.s.Policy.DriverName && va.Spec.NodeName == name && source != nil {
			view.attachments[*source] = va
		}
	}
	d.views[name] = view
	return view
}

// podView resolves the claims of a pod.
func (d *decider) podView(pod *v1.Pod) *podView {
	p := &podView{pod: pod}
	claims := kube.ClaimNames(pod)
	for i := range pod.Spec.Volumes {
		name := pod.Spec.Volumes[i].Name
		claim, ok := claims[name]
		if !ok {
			continue
		}
		u := use{volume: name, claim: types.NamespacedName{Namespace: pod.Namespace, Name: claim}}
		if pvc := d.s.Claims[u.claim]; pvc != nil && pvc.Spec.VolumeName != "" {
			u.pv = d.s.Volumes[pvc.Spec.VolumeName]
		}
		if u.pv != nil && claimedByOther(u.pv, u.claim) {
			u.pv = nil
		}
		if u.pv != nil {
			_, u.ours = d.handleOf(u.pv)
		}
		p.uses = append(p.uses, u)
	}
	return p
}

// claimedByOther reports whether the volume says that it is another claim's.
// Anybody may name any volume in a claim of their own, and no kubelet mounts it
// for that. (Of the name that the volume does say, checkClaim asks for the UID.)
func claimedByOther(pv *v1.PersistentVolume, claim types.NamespacedName) bool {
	ref := pv.Spec.ClaimRef
	return ref != nil && (ref.Namespace != claim.Namespace || ref.Name != claim.Name)
}

// closure follows pods to volumes and volumes to pods up to the fix point.
// PersistentVolumes that share a handle belong together: a fence takes the
// handle from the pods of all of them. A network fence cuts off a failed node as
// a whole, so that all it carries of the driver belongs together.
func (d *decider) closure(view *nodeView, seeds []*v1.PersistentVolume) *closure {
	if d.s.Policy.Fence == FenceNetwork && !view.ready {
		for _, p := range view.pods {
			for _, u := range p.uses {
				if u.ours {
					seeds = append(seeds, u.pv)
				}
			}
		}
	}
	return reach(view, seeds, func(pv *v1.PersistentVolume) []*v1.PersistentVolume {
		return d.sharing(volume.Handle(pv.Spec.CSI.VolumeHandle))
	})
}

// sharing lists the PersistentVolumes of a handle, in order of their names.
func (d *decider) sharing(handle volume.Handle) []*v1.PersistentVolume {
	names := d.pvByHandle[handle]
	pvs := make([]*v1.PersistentVolume, len(names))
	for i, name := range names {
		pvs[i] = d.s.Volumes[name]
	}
	return pvs
}

// reach collects what hangs together with the seeds: a pod goes with the
// volumes that follow yields for each one of the driver that it uses.
func reach(view *nodeView, seeds []*v1.PersistentVolume, follow func(*v1.PersistentVolume) []*v1.PersistentVolume) *closure {
	c := &closure{node: view.name}
	volumes, pods := map[string]bool{}, map[types.UID]bool{}
	for queue := slices.Clone(seeds); len(queue) > 0; queue = queue[1:] {
		pv := queue[0]
		if volumes[pv.Name] {
			continue
		}
		volumes[pv.Name] = true
		c.volumes = append(c.volumes, &member{pv: pv, attachment: view.attachments[pv.Name], users: view.users[pv.Name]})
		for _, p := range view.users[pv.Name] {
			if pods[p.pod.UID] {
				continue
			}
			pods[p.pod.UID] = true
			c.pods = append(c.pods, p)
			for _, u := range p.uses {
				if u.ours {
					queue = append(queue, follow(u.pv)...)
				}
			}
		}
	}
	slices.SortFunc(c.volumes, func(a, b *member) int { return cmp.Compare(a.pv.Name, b.pv.Name) })
	slices.SortFunc(c.pods, func(a, b *podView) int {
		return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	return c
}

// member finds a volume of the closure.
func (c *closure) member(pv string) *member {
	for _, m := range c.volumes {
		if m.pv.Name == pv {
			return m
		}
	}
	return nil
}

// refs renders the closure as plain names.
func (c *closure) refs() Closure {
	refs := Closure{Node: c.node}
	for _, p := range c.pods {
		refs.Pods = append(refs.Pods, PodRef{Namespace: p.pod.Namespace, Name: p.pod.Name, UID: p.pod.UID})
	}
	for _, m := range c.volumes {
		ref := VolumeRef{PV: m.pv.Name, Handle: volume.Handle(m.pv.Spec.CSI.VolumeHandle)}
		if m.attachment != nil {
			ref.Attachment, ref.AttachmentUID = m.attachment.Name, m.attachment.UID
		}
		for _, p := range m.users {
			ref.PodUIDs = append(ref.PodUIDs, p.pod.UID)
		}
		refs.Volumes = append(refs.Volumes, ref)
	}
	return refs
}

// handleOf returns the handle of a volume of our driver.
func (d *decider) handleOf(pv *v1.PersistentVolume) (volume.Handle, bool) {
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != d.s.Policy.DriverName {
		return "", false
	}
	return volume.Handle(pv.Spec.CSI.VolumeHandle), true
}
