package hacontroller

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// changesTogether is how long changes are collected while pods are being evicted.
const changesTogether = 250 * time.Millisecond

// mark is one failing PersistentVolume that was told of and is not settled. It
// is bound to the attachments that it was told about: one that replaces them
// needs a new word.
type mark struct {
	pv       string
	received time.Time
	// vas are the attachments meant, and the node of each.
	vas map[types.UID]string
	// vaName and pods are bound when the sender vouches: then nobody is asked
	// again what to move.
	vaName string
	pods   sets.Set[types.UID]
	// drained is when the last pod was seen gone from a Ready node; from then on
	// the ordinary detach is only watched.
	drained time.Time
}

func (m *mark) on(node string) bool {
	for _, n := range m.vas {
		if n == node {
			return true
		}
	}
	return false
}

// markAll takes in failing names. What a panic loses is told again.
func (hac *haController) markAll(ctx context.Context, pvs []string) {
	received := hac.clock.Now()
	var all map[string][]Target
	if hac.targeter != nil {
		if err := caught(hac.metrics, func() error { all = hac.targetsOf(pvs); return nil }); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to take in failing volumes", "persistentVolumes", pvs)
			return
		}
	}
	nodes := sets.New[string]()
	for _, pv := range pvs {
		m := &mark{pv: pv, received: received}
		hac.mark(ctx, m, all[pv])
		nodes.Insert(slices.Collect(maps.Values(m.vas))...)
	}
	for node := range nodes { // once all are in, so that the first look sees them all
		hac.queue.Add(node)
	}
}

// mark binds a failing name and takes it in. One that means nothing is dropped.
func (hac *haController) mark(ctx context.Context, m *mark, targets []Target) {
	pv := m.pv
	logger := klog.FromContext(ctx).WithValues("persistentVolume", pv)
	var why string
	err := caught(hac.metrics, func() error {
		if hac.targeter == nil {
			why = hac.bindVouched(ctx, m)
		} else {
			why = m.bindTargets(targets)
		}
		return nil
	})
	if err != nil {
		logger.Error(err, "Failed to take in a failing volume")
		return
	}
	if why != "" {
		logger.Info("Ignored a failing volume", "reason", why)
		return
	}
	hac.mu.Lock()
	hac.replace(hac.marks[pv], m)
	hac.mu.Unlock()
	logger.V(2).Info("Took in a failing volume", "attachments", len(m.vas))
}

// replace puts m in the place of an older word about the same volume, with
// hac.mu held. What is on its way goes on; what was already off the node and
// fails again begins anew.
func (hac *haController) replace(old, m *mark) {
	hac.marks[m.pv] = m
	if old == nil || !sameAttachment(old, m) {
		return
	}
	if old.drained.IsZero() {
		m.received = old.received
		m.pods = m.pods.Union(old.pods)
		return
	}
	for key, t := range hac.tracks {
		if vas, _, _ := t.waitsFor(m.received); slices.ContainsFunc(vas, func(uid types.UID) bool { return hasKey(m.vas, uid) }) {
			hac.traceEnd(t, "fails again")
			delete(hac.tracks, key)
		}
	}
}

// sameAttachment reports whether both marks were bound to a common attachment.
func sameAttachment(a, b *mark) bool {
	for uid := range a.vas {
		if _, ok := b.vas[uid]; ok {
			return true
		}
	}
	return false
}

// bindTargets binds m to the attachments of its volume in the closure.
func (m *mark) bindTargets(targets []Target) (why string) {
	if len(targets) == 0 {
		return "it is not to be moved"
	}
	m.vas = map[types.UID]string{}
	for _, t := range targets {
		if t.PV == m.pv {
			m.vas[t.VolumeAttachmentUID] = t.Node
		}
	}
	if len(m.vas) == 0 {
		return "it has no attachment"
	}
	return ""
}

// marksOn lists the marks that concern node.
func (hac *haController) marksOn(node string) []*mark {
	hac.mu.Lock()
	defer hac.mu.Unlock()
	var marks []*mark
	for _, m := range hac.marks {
		if m.on(node) {
			marks = append(marks, m)
		}
	}
	return marks
}

// drop forgets m, unless a newer word about the same volume took its place.
func (hac *haController) drop(m *mark) {
	hac.mu.Lock()
	defer hac.mu.Unlock()
	if hac.marks[m.pv] == m {
		delete(hac.marks, m.pv)
	}
}

// dropGone drops the marks on node whose attachments no longer exist, and says
// how many are left. It writes nothing, so followers call it too: what they
// remember must not outlive what it was about.
func (hac *haController) dropGone(ctx context.Context, node string) (left int) {
	for _, m := range hac.marksOn(node) {
		live := sets.New[types.UID]()
		for _, va := range hac.attachments(vasByPV, m.pv) {
			live.Insert(va.UID)
		}
		gone := true
		for uid := range m.vas {
			gone = gone && !live.Has(uid)
		}
		if !gone {
			left++
			continue
		}
		klog.FromContext(ctx).V(2).Info("Dropped a failing volume, its attachment is gone", "persistentVolume", m.pv)
		hac.drop(m)
	}
	return left
}

// wakeIfActive queues a node that has unsettled work.
func (hac *haController) wakeIfActive(node string) {
	hac.mu.Lock()
	active := false
	for _, m := range hac.marks {
		active = active || m.on(node)
	}
	for _, t := range hac.tracks {
		active = active || t.node == node
	}
	hac.mu.Unlock()
	if active {
		hac.queue.AddAfter(node, hac.wakePause(node))
	}
}

// wakePause is how long a change on node is collected with others before the next
// look. While evictions wait for their answers no other step of theirs is due, and
// each look costs the API server a list of the node's pods, just when it is moving
// many. With a record the next step is this controller's own.
func (hac *haController) wakePause(node string) time.Duration {
	if hac.evicting.Load() == 0 || slices.ContainsFunc(hac.attachments(vasByNode, node), volume.Fenced) {
		return 0
	}
	return changesTogether
}
