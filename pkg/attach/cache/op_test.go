package cache

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/ha-sidecar/ha-sidecar/pkg/attach/types"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// op is one call of either cache. What a call answers is put as text, so that a
// cache and its model can be compared.
type op struct {
	kind              string
	volume, node, pod string
	dev               string // and the spec's PersistentVolume is named after it
	yes               bool   // attached or mounted
	named, noSpec     bool   // the volume is given by name, without a spec
	list              []string
}

// model is the plainest thing that behaves like a cache.
type model interface {
	// apply changes the model, and says what the call answers.
	apply(o op) string
	clone() model
	// text is the same for models that are.
	text() string
}

func specNamed(handle, name string) *volume.Spec {
	spec := specOf(handle)
	spec.PersistentVolume.Name = name
	return spec
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

func sorted(lines []string) string {
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

// handleOf undoes nameOf.
func handleOf(name v1.UniqueVolumeName) string {
	return strings.TrimPrefix(string(name), string(nameOf("")))
}

func namesOf(handles []string) (names []v1.UniqueVolumeName) {
	for _, h := range handles {
		names = append(names, nameOf(h))
	}
	return names
}

func pairText(handle, node, dev, spec string, mounted bool, since int) string {
	return fmt.Sprintf("%s on %s dev=%s spec=%s mounted=%v since=%d", handle, node, dev, spec, mounted, since)
}

// runActual makes the call. Times are in seconds since epoch, -1 for none.
func runActual(w ActualStateOfWorld, epoch time.Time, o op) string {
	name := nameOf(o.volume)
	switch o.kind {
	case "add":
		var spec *volume.Spec
		var given v1.UniqueVolumeName
		if !o.noSpec {
			spec = specNamed(o.volume, "of "+o.dev)
		}
		if o.named {
			given = name
		}
		_, err := w.AddVolumeNodeAs(given, spec, o.node, o.dev, o.yes)
		return result(err)
	case "attached":
		return result(w.MarkVolumeAsAttached(name, specNamed(o.volume, "of "+o.dev), o.node, o.dev))
	case "uncertain":
		return result(w.MarkVolumeAsUncertain(name, nil, o.node))
	case "delete":
		w.DeleteVolumeNode(name, o.node)
		return "ok"
	case "mounted":
		return result(w.SetVolumeMountedByNode(name, o.node, o.yes))
	case "allMounted":
		w.SetVolumesMountedByNode(namesOf(o.list), o.node)
		return "ok"
	case "setDetach":
		elapsed, err := w.SetDetachRequestTime(name, o.node)
		return fmt.Sprint(result(err), elapsed.Seconds())
	case "resetDetach":
		w.ResetDetachRequestTime(name, o.node)
		return "ok"
	case "unreport":
		return result(w.RemoveVolumeFromReportAsAttached(name, o.node))
	case "rereport":
		w.AddVolumeToReportAsAttached(name, o.node)
		return "ok"
	case "setNeeded":
		return result(w.SetNodeStatusUpdateNeeded(o.node))
	case "resetNeeded":
		return result(w.ResetNodeStatusUpdateNeeded(o.node))
	default:
		return readActual(w, epoch, o)
	}
}

func readActual(w ActualStateOfWorld, epoch time.Time, o op) string {
	var lines []string
	describe := func(list []AttachedVolume) string {
		for _, a := range list {
			since := -1
			if !a.DetachRequestedTime.IsZero() {
				since = int(a.DetachRequestedTime.Sub(epoch).Seconds())
			}
			lines = append(lines, pairText(handleOf(a.VolumeName), a.NodeName, a.DevicePath, a.VolumeSpec.Name(), a.MountedByNode, since))
		}
		return sorted(lines)
	}
	switch o.kind {
	case "state":
		return fmt.Sprint(w.GetAttachState(nameOf(o.volume), o.node))
	case "exists":
		return fmt.Sprint(w.VolumeNodeExists(nameOf(o.volume), o.node))
	case "nodes":
		return sorted(w.GetNodesForAttachedVolume(nameOf(o.volume)))
	case "all":
		return describe(w.GetAttachedVolumes())
	case "on":
		return describe(w.GetAttachedVolumesForNode(o.node))
	case "perNode":
		for node, list := range w.GetAttachedVolumesPerNode() {
			for _, a := range list {
				lines = append(lines, node+" "+handleOf(a.VolumeName))
			}
		}
		return sorted(lines)
	case "report":
		return sorted(reportText(w.GetVolumesToReportAttached()))
	case "reportOf":
		needed, list := w.GetVolumesToReportAttachedForNode(o.node)
		return fmt.Sprint(needed, listText(list))
	default:
		panic("no such call: " + o.kind)
	}
}

// runDesired makes the call.
func runDesired(w DesiredStateOfWorld, o op) string {
	name := nameOf(o.volume)
	var lines []string
	switch o.kind {
	case "addNode":
		w.AddNode(o.node)
		return "ok"
	case "deleteNode":
		return result(w.DeleteNode(o.node))
	case "addPod":
		_, err := w.AddPod(types.UniquePodName(o.pod), podOf(o.pod), specNamed(o.volume, "of "+o.dev), o.node)
		return result(err)
	case "deletePod":
		w.DeletePod(types.UniquePodName(o.pod), name, o.node)
		return "ok"
	case "setMulti":
		w.SetMultiAttachError(name, o.node)
		return "ok"
	case "nodeExists":
		return fmt.Sprint(w.NodeExists(o.node))
	case "exists":
		return fmt.Sprint(w.VolumeExists(name, o.node))
	case "multi":
		return fmt.Sprint(w.MultiAttachErrorReported(name, o.node))
	case "podsOn":
		return uids(w.GetVolumePodsOnNodes(o.list, name))
	case "toAttach":
		for _, v := range w.GetVolumesToAttach() {
			lines = append(lines, fmt.Sprintf("%s on %s spec=%s: %s", handleOf(v.VolumeName), v.NodeName, v.VolumeSpec.Name(), uids(v.ScheduledPods)))
		}
		return sorted(lines)
	case "pods":
		// Which of its volumes a pod comes with is not settled.
		for name := range w.GetPodToAdd() {
			lines = append(lines, string(name))
		}
		return sorted(lines)
	default:
		panic("no such call: " + o.kind)
	}
}
