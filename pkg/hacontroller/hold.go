package hacontroller

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// The hold is a taint and an annotation of the same key on the Node. All here
// is pure: a Node in, what it should be out.

// held reports whether anything of driver's hold is on node.
func held(node *v1.Node, driver string) bool {
	key := volume.HoldKey(driver)
	_, annotated := node.Annotations[key]
	return annotated || slices.ContainsFunc(node.Spec.Taints, isHold(key))
}

func isHold(key string) func(v1.Taint) bool {
	return func(t v1.Taint) bool { return t.Key == key && t.Effect == v1.TaintEffectNoSchedule }
}

// holdRecordOf reads the node's record; an absent one is empty.
func holdRecordOf(node *v1.Node, driver string) (volume.HoldRecord, error) {
	value, ok := node.Annotations[volume.HoldKey(driver)]
	if !ok {
		return volume.HoldRecord{}, nil
	}
	return volume.ParseHoldRecord(value)
}

// hold is a driver's hold of a node, read once for all the walks that ask.
type hold struct {
	tainted bool
	// volumes are those it was made for, by the names of their PersistentVolumes;
	// true for those that the node must be clean of.
	volumes map[string]bool
}

// holdOn reads the hold of driver on node. One that cannot be read covers nothing.
func holdOn(node *v1.Node, driver string) hold {
	h := hold{volumes: map[string]bool{}}
	rec, err := holdRecordOf(node, driver)
	if err != nil {
		return h
	}
	h.tainted = slices.ContainsFunc(node.Spec.Taints, isHold(volume.HoldKey(driver)))
	for _, v := range rec.Volumes {
		h.volumes[v.PV] = v.Fenced
	}
	return h
}

// covers reports whether the node is held for all of pvs; with fenced, as volumes
// that it must be clean of.
func (h hold) covers(pvs []string, fenced bool) bool {
	return h.tainted && !slices.ContainsFunc(pvs, func(pv string) bool {
		asFenced, ok := h.volumes[pv]
		return !ok || fenced && !asFenced
	})
}

// addHold is the patch that holds node for more volumes; those already there
// stay, and a volume once fenced stays fenced.
func addHold(node *v1.Node, driver string, more []volume.HeldVolume, now metav1.Time) (*nodePatch, error) {
	rec, err := holdRecordOf(node, driver)
	if err != nil {
		return nil, err
	}
	if rec.Time.IsZero() {
		rec.Time = now
	}
	if boot := node.Status.NodeInfo.BootID; rec.BootID != boot {
		// Nothing of an earlier boot is mounted any more.
		for i := range rec.Volumes {
			rec.Volumes[i].Fenced = false
		}
		rec.BootID = boot
	}
	rec.Volumes = slices.Clone(rec.Volumes)
	for _, v := range more {
		i := slices.IndexFunc(rec.Volumes, func(h volume.HeldVolume) bool { return h.PV == v.PV })
		if i < 0 {
			v.Time = now
			rec.Volumes = append(rec.Volumes, v)
			continue
		}
		rec.Volumes[i].Fenced = rec.Volumes[i].Fenced || v.Fenced
	}
	// A word left over from an earlier hold says nothing about this one.
	stale := node.Annotations[volume.AnnotationUnfence] != "" && len(holdRecords(node)) == 0
	return holdPatch(node, driver, &rec, stale)
}

// holdPatch sets driver's record and taint, or removes both when rec is nil.
func holdPatch(node *v1.Node, driver string, rec *volume.HoldRecord, dropWord bool) (*nodePatch, error) {
	key := volume.HoldKey(driver)
	p := newNodePatch(node)
	taints := slices.Clone(node.Spec.Taints)
	if rec == nil {
		taints = slices.DeleteFunc(taints, isHold(key))
		p.removeAnnotation(key)
	} else {
		value, err := rec.Encode()
		if err != nil {
			return nil, err
		}
		p.setAnnotation(key, value)
		if !slices.ContainsFunc(taints, isHold(key)) && len(rec.Volumes) > 0 {
			taints = append(taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoSchedule})
		}
	}
	if dropWord {
		p.removeAnnotation(volume.AnnotationUnfence)
	}
	p.setTaints(taints)
	return p, nil
}

// holdRecords are the readable records of every driver's hold on node.
func holdRecords(node *v1.Node) []volume.HoldRecord {
	var recs []volume.HoldRecord
	prefix := volume.HoldKey("")
	for key, value := range node.Annotations {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		if rec, err := volume.ParseHoldRecord(value); err == nil {
			recs = append(recs, rec)
		}
	}
	return recs
}

// release is what becomes of a hold.
type release struct {
	// rec is the record as it should be; nil when the hold comes off.
	rec *volume.HoldRecord
	// changed tells whether anything has to be written.
	changed bool
	// word: a person's word was used.
	word bool
}

// releaseHold decides what may be released. A fenced volume is clean once the
// kubelet of a Ready node no longer names it, or the node was booted since, or a
// person says so; a clean one comes off when it has recovered and is not in use.
// busy volumes are on their way and stay.
func releaseHold(node *v1.Node, driver string, rec volume.HoldRecord, busy func(pv string) bool, recovered func(h volume.Handle) bool) release {
	ready := kube.NodeReady(node)
	booted := rec.BootID != "" && node.Status.NodeInfo.BootID != "" && rec.BootID != node.Status.NodeInfo.BootID
	word := node.Annotations[volume.AnnotationUnfence] != ""
	out := release{}
	next := volume.HoldRecord{Time: rec.Time, BootID: rec.BootID}
	anyBusy := false
	for _, v := range rec.Volumes {
		inUse := v.Handle != "" && kube.VolumeInUse(node, volume.UniqueName(driver, v.Handle))
		switch {
		case busy(v.PV):
			anyBusy = true
		case v.Fenced && (booted || word || ready && !inUse):
			v.Fenced = false
			out.changed = true
			out.word = out.word || word
		}
		if !v.Fenced && !busy(v.PV) && ready && (!inUse || word) && recovered(v.Handle) {
			out.changed = true
			continue
		}
		next.Volumes = append(next.Volumes, v)
	}
	if booted && !anyBusy {
		next.BootID = node.Status.NodeInfo.BootID
		out.changed = true
	}
	if len(next.Volumes) == 0 {
		out.changed = true
		return out
	}
	out.rec = &next
	return out
}

// wordDone reports whether nobody needs the person's word any more: with rec in
// place of driver's record, no fenced volume is left on node. The word is shared
// between the drivers of a node, and the last one to use it takes it away.
func wordDone(node *v1.Node, driver string, rec *volume.HoldRecord) bool {
	for key, value := range node.Annotations {
		if !strings.HasPrefix(key, volume.HoldKey("")) {
			continue
		}
		r, err := volume.ParseHoldRecord(value)
		if key == volume.HoldKey(driver) {
			if r, err = (volume.HoldRecord{}), nil; rec != nil {
				r = *rec
			}
		}
		if err == nil && slices.ContainsFunc(r.Volumes, func(v volume.HeldVolume) bool { return v.Fenced }) {
			return false
		}
	}
	return true
}
