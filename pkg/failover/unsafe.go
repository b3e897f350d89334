package failover

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// checkUnsafe looks for what a pod can write and we cannot fence (R4): the old
// instance could go on writing there beside the new one.
func (d *decider) checkUnsafe(a *Answer, p *podView) {
	var unsafe []string
	for i := range p.pod.Spec.Volumes {
		vol := &p.pod.Spec.Volumes[i]
		j := slices.IndexFunc(p.uses, func(u use) bool { return u.volume == vol.Name })
		if j < 0 {
			if what := unsafeSource(vol); what != "" && writable(p.pod, vol) {
				unsafe = append(unsafe, fmt.Sprintf("%s (%s)", vol.Name, what))
			}
			continue
		}
		switch u := p.uses[j]; {
		case u.pv == nil:
			a.add(ActionWait, CodeClaimMissing, time.Time{}, fmt.Sprintf("the claim %s of pod %s, or its PersistentVolume, is not there, or they are not bound to each other", u.claim, podName(p.pod)))
		case !u.ours && !readOnlyVolume(u.pv) && writable(p.pod, vol):
			unsafe = append(unsafe, fmt.Sprintf("%s (%s)", vol.Name, foreign(u.pv)))
		}
	}
	switch {
	case len(unsafe) == 0:
	case p.pod.Annotations[volume.AnnotationAllowUnsafe] == "true":
		a.add(ActionMove, CodeUnsafeAllowed, time.Time{}, fmt.Sprintf("pod %s allows to leave behind what nothing fences: %s", podName(p.pod), strings.Join(unsafe, ", ")))
	default:
		a.add(ActionRefuse, CodeUnsafeVolume, time.Time{}, fmt.Sprintf("pod %s can write to what nothing fences: %s; mount it read-only, or annotate the pod %s=true", podName(p.pod), strings.Join(unsafe, ", "), volume.AnnotationAllowUnsafe))
	}
}

// unsafeSource names a volume that is not a claim and outlives the pod, empty
// for one that does not matter. An unknown kind matters.
func unsafeSource(vol *v1.Volume) string {
	src := &vol.VolumeSource
	switch {
	case src.EmptyDir != nil, src.ConfigMap != nil, src.Secret != nil, src.Projected != nil,
		src.DownwardAPI != nil, src.Image != nil, src.GitRepo != nil:
		return ""
	case src.HostPath != nil:
		return "hostPath " + src.HostPath.Path
	case src.CSI != nil:
		if src.CSI.ReadOnly != nil && *src.CSI.ReadOnly {
			return ""
		}
		return "inline volume of driver " + src.CSI.Driver
	case src.NFS != nil:
		return "nfs"
	case src.ISCSI != nil:
		return "iscsi"
	default:
		return "a volume without VolumeAttachment of ours"
	}
}

// foreign names the kind of a PersistentVolume that is not ours.
func foreign(pv *v1.PersistentVolume) string {
	switch {
	case pv.Spec.CSI != nil:
		return "driver " + pv.Spec.CSI.Driver
	case pv.Spec.Local != nil:
		return "local volume"
	case pv.Spec.HostPath != nil:
		return "hostPath volume"
	default:
		return "PersistentVolume " + pv.Name
	}
}

// readOnlyVolume reports whether every access mode of the volume is for
// readers.
func readOnlyVolume(pv *v1.PersistentVolume) bool {
	return len(pv.Spec.AccessModes) > 0 && !slices.ContainsFunc(pv.Spec.AccessModes, func(m v1.PersistentVolumeAccessMode) bool {
		return m != v1.ReadOnlyMany
	})
}

// writable reports whether any container of the pod can write to the volume.
func writable(pod *v1.Pod, vol *v1.Volume) bool {
	if vol.PersistentVolumeClaim != nil && vol.PersistentVolumeClaim.ReadOnly {
		return false
	}
	mounted := func(mounts []v1.VolumeMount, devices []v1.VolumeDevice) bool {
		return slices.ContainsFunc(mounts, func(m v1.VolumeMount) bool { return m.Name == vol.Name && !m.ReadOnly }) ||
			slices.ContainsFunc(devices, func(dev v1.VolumeDevice) bool { return dev.Name == vol.Name })
	}
	container := func(c v1.Container) bool { return mounted(c.VolumeMounts, c.VolumeDevices) }
	return slices.ContainsFunc(pod.Spec.Containers, container) ||
		slices.ContainsFunc(pod.Spec.InitContainers, container) ||
		slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c v1.EphemeralContainer) bool {
			return mounted(c.VolumeMounts, c.VolumeDevices)
		})
}
