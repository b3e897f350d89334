package hacontroller

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// walk is one closure on one node on its way through the steps.
type walk struct {
	node    string
	targets []volume.Target
	// record is the plan as written; nil while there is a way back.
	record *volume.FenceRecord
	// marks are what asked for it; a resumed walk has none.
	marks []*mark
	track *track

	// What was read live, for this walk alone.
	pods      []*v1.Pod
	vas       []*storagev1.VolumeAttachment
	strangers []*v1.Pod
}

// pvs names the walk's volumes in order.
func (w *walk) pvs() []string {
	var pvs []string
	for _, t := range w.targets {
		pvs = append(pvs, t.PV)
	}
	slices.Sort(pvs)
	return slices.Compact(pvs)
}

func (w *walk) moves(pv string) bool {
	return slices.ContainsFunc(w.targets, func(t volume.Target) bool { return t.PV == pv })
}

// key is the name of the walk's memory, the same before and after the record.
func (w *walk) key() types.UID {
	var uids []types.UID
	for _, t := range w.targets {
		uids = append(uids, t.VolumeAttachmentUID)
	}
	if len(uids) == 0 {
		return ""
	}
	return slices.Min(uids)
}

// overlaps reports whether two walks have an attachment in common.
func (w *walk) overlaps(other *walk) bool {
	return slices.ContainsFunc(w.targets, func(a volume.Target) bool {
		return slices.ContainsFunc(other.targets, func(b volume.Target) bool {
			return a.VolumeAttachmentUID == b.VolumeAttachmentUID
		})
	})
}

// asked asks the Targeter again for every mark on node and joins the answers
// into closures. A mark that it no longer supports is dropped.
func (hac *haController) asked(ctx context.Context, node string) []*walk {
	var walks []*walk
	marks := slices.DeleteFunc(hac.marksOn(node), func(m *mark) bool { return !m.drained.IsZero() })
	names := make([]string, len(marks))
	for i, m := range marks {
		names[i] = m.pv
	}
	all := hac.targetsOf(names)
	for _, m := range marks {
		targets, ok := all[m.pv]
		w := &walk{node: node, marks: []*mark{m}}
		bound := false
		for _, t := range targets {
			if t.Node == node {
				w.targets = append(w.targets, t)
				bound = bound || hasKey(m.vas, t.VolumeAttachmentUID)
			}
		}
		if !ok || !bound {
			klog.FromContext(ctx).Info("Dropped a failing volume, it is not to be moved any more", "persistentVolume", m.pv)
			hac.drop(m)
			continue
		}
		walks = merge(walks, w)
	}
	return walks
}

// targetsOf asks the Targeter for all names, which is nothing for no name.
func (hac *haController) targetsOf(names []string) map[string][]Target {
	if len(names) == 0 {
		return nil
	}
	if b, ok := hac.targeter.(BatchTargeter); ok {
		return b.TargetsOf(names)
	}
	all := map[string][]Target{}
	for _, name := range names {
		if targets, ok := hac.targeter.Targets(name); ok {
			all[name] = targets
		}
	}
	return all
}

// merge adds w to walks, joined with all that it overlaps.
func merge(walks []*walk, w *walk) []*walk {
	var apart []*walk
	for _, other := range walks {
		if !w.overlaps(other) {
			apart = append(apart, other)
			continue
		}
		w.marks = append(w.marks, other.marks...)
		for _, t := range other.targets {
			w.targets = addTarget(w.targets, t)
		}
	}
	return append(apart, w)
}

// addTarget joins t into targets by attachment.
func addTarget(targets []volume.Target, t volume.Target) []volume.Target {
	for i := range targets {
		if targets[i].VolumeAttachmentUID != t.VolumeAttachmentUID {
			continue
		}
		uids := slices.Concat(targets[i].PodUIDs, t.PodUIDs)
		slices.Sort(uids)
		targets[i].PodUIDs = slices.Compact(uids)
		return targets
	}
	return append(targets, t)
}

// recorded finds the walks on node that have a record on one of vas. A record
// that cannot be read is shown and left alone.
func (hac *haController) recorded(ctx context.Context, node string, vas []*storagev1.VolumeAttachment) []*walk {
	var walks []*walk
	for _, va := range vas {
		rec, ok, err := volume.FenceRecordOf(va)
		if !ok || va.Spec.NodeName != node || va.Spec.Attacher != hac.driver {
			continue
		}
		if err != nil || rec.Node != node || !plansFor(&rec, va) {
			hac.refuse(ctx, va, ReasonUnreadableRecord, RefusedEventReason)
			continue
		}
		w := &walk{node: node, targets: slices.Clone(rec.Targets), record: &rec}
		if slices.ContainsFunc(walks, w.overlaps) {
			continue // the same plan, on another of its attachments
		}
		walks = append(walks, w)
	}
	return walks
}

// plansFor reports whether the record is va's own: va is in the plan, and all of
// the plan is about one node. A copy on another attachment is nobody's plan.
func plansFor(rec *volume.FenceRecord, va *storagev1.VolumeAttachment) bool {
	mine := func(t volume.Target) bool { return t.VolumeAttachmentUID == va.UID }
	elsewhere := func(t volume.Target) bool { return t.Node != rec.Node }
	return slices.ContainsFunc(rec.Targets, mine) && !slices.ContainsFunc(rec.Targets, elsewhere)
}

// vaNames are the attachments of node that matter: those with a record, and
// those that a walk targets. A target that the cache does not have is missing
// from the answer: it is gone, since the cache is never behind the record or
// the judge, which both saw it.
func (hac *haController) vaNames(node string, walks []*walk) []string {
	targeted := map[types.UID]bool{}
	for _, w := range walks {
		for _, t := range w.targets {
			targeted[t.VolumeAttachmentUID] = true
		}
	}
	var names []string
	for _, va := range hac.attachments(vasByNode, node) {
		if targeted[va.UID] || volume.Fenced(va) {
			names = append(names, va.Name)
		}
	}
	slices.Sort(names)
	return names
}

// walksOf joins what is asked with what is recorded: a record always wins, and
// what overlaps it waits until it is through.
func (hac *haController) walksOf(ctx context.Context, node string, asked []*walk, l *live) ([]*walk, error) {
	recorded := hac.recorded(ctx, node, l.attachments())
	// A record may be found that the cache did not have, on one attachment of
	// several: then the rest of its plan is still to be read.
	if err := hac.readMore(ctx, l, hac.vaNames(node, recorded)); err != nil {
		return nil, err
	}
	walks := recorded
	for _, w := range asked {
		i := slices.IndexFunc(recorded, w.overlaps)
		if i < 0 {
			walks = append(walks, w)
			continue
		}
		recorded[i].marks = append(recorded[i].marks, w.marks...)
	}
	now := hac.clock.Now()
	for _, w := range walks {
		w.track = hac.track(w.key(), node, receivedFirst(w.marks, now))
		hac.fill(w, l)
		if w.record != nil {
			w.track.finish(w, time.Time{}) // it ends with its attachments, however they go
		} else {
			w.track.resume(w)
			w.track.forgetFences()
		}
	}
	// What carries a record and is in no readable plan was shown above, and
	// nobody may guess what the plan was.
	return slices.DeleteFunc(walks, func(w *walk) bool {
		return w.record == nil && slices.ContainsFunc(w.vas, volume.Fenced)
	}), nil
}

func receivedFirst(marks []*mark, otherwise time.Time) time.Time {
	first := otherwise
	for _, m := range marks {
		if m.received.Before(first) {
			first = m.received
		}
	}
	return first
}

// fill puts into w its part of what was read live.
func (hac *haController) fill(w *walk, l *live) {
	planned := map[types.UID]bool{}
	for _, t := range w.targets {
		for _, uid := range t.PodUIDs {
			planned[uid] = true
		}
		if va := l.vas[t.VolumeAttachmentUID]; va != nil && !slices.Contains(w.vas, va) {
			w.vas = append(w.vas, va)
		}
	}
	for uid, pod := range l.pods {
		switch {
		case planned[uid] && (w.record != nil || !finished(pod)):
			w.pods = append(w.pods, pod)
		case !planned[uid] && !finished(pod) && w.movesAny(l.uses[uid]):
			w.strangers = append(w.strangers, pod)
		}
	}
	slices.SortFunc(w.pods, func(a, b *v1.Pod) int { return compareUIDs(a.UID, b.UID) })
}

func (hac *haController) uses(pod *v1.Pod, w *walk) bool {
	return w.movesAny(hac.volumesOf(pod))
}

func (w *walk) movesAny(pvs map[string]bool) bool {
	for pv := range pvs {
		if w.moves(pv) {
			return true
		}
	}
	return false
}
