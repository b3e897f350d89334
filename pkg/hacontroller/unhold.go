package hacontroller

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// holdAll puts one hold on the node for all the walks that need one, since
// nothing may land there from before the first pod goes.
func (hac *haController) holdAll(ctx context.Context, l *live, walks []*walk) error {
	var more []volume.HeldVolume
	var waiting []*walk
	for _, w := range walks {
		if decide(hac.view(w, l)).step != stepHold || w.track.holdPause(hac.clock.Now()) > 0 {
			continue
		}
		waiting = append(waiting, w)
		for _, pv := range w.pvs() {
			handle, err := hac.handleOf(ctx, pv)
			if err != nil {
				return err
			}
			more = append(more, volume.HeldVolume{PV: pv, Handle: handle, Fenced: hac.willFence(w, l)})
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	patch, err := addHold(l.node, hac.driver, more, metav1.NewTime(hac.clock.Now()))
	if err != nil {
		hac.refuse(ctx, l.node, ReasonUnreadableHold, RefusedEventReason)
		return fmt.Errorf("holding node %s: %w", l.node.Name, err)
	}
	first := !held(l.node, hac.driver)
	node, err := hac.patchNode(ctx, patch)
	if err != nil {
		return fmt.Errorf("holding node %s: %w", l.node.Name, err)
	}
	l.putNode(node, hac.driver)
	if first {
		hac.event(node, v1.EventTypeWarning, HeldEventReason,
			"Pods are kept off this node, since volumes of %s fail on it", hac.driver)
	}
	for _, w := range waiting {
		if w.track.holdTried(hac.clock.Now()) > holdsExpected {
			hac.refuse(ctx, node, ReasonHoldLost, RefusedEventReason)
		}
		hac.reached(ctx, w.track, w.pvs(), MilestoneHeld)
	}
	return nil
}

// willFence reports whether the walk is, or is about to be, one that takes
// volumes away from a node that may still have them mounted.
func (hac *haController) willFence(w *walk, l *live) bool {
	return w.record != nil || l.node == nil || !kube.NodeReady(l.node)
}

// handleOf is the driver's name of the volume; "" for a PersistentVolume that is
// gone, which no node can need to be kept from.
func (hac *haController) handleOf(ctx context.Context, name string) (volume.Handle, error) {
	pv, err := hac.caches.pvLister.Get(name)
	if err != nil {
		ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
		defer cancel()
		pv, err = hac.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("reading PersistentVolume %s: %w", name, err)
	case pv.Spec.CSI == nil:
		return "", nil
	}
	return volume.Handle(pv.Spec.CSI.VolumeHandle), nil
}

// unhold releases what may be released of the node's hold.
func (hac *haController) unhold(ctx context.Context, l *live, walks []*walk) error {
	node := l.node
	if node == nil {
		return nil
	}
	word := node.Annotations[volume.AnnotationUnfence]
	if !held(node, hac.driver) {
		return hac.dropUnusedWord(ctx, node)
	}
	rec, err := holdRecordOf(node, hac.driver)
	if err != nil {
		hac.refuse(ctx, node, ReasonUnreadableHold, RefusedEventReason)
		return nil //nolint:nilerr // a person has to look; the event says so
	}
	busy := func(pv string) bool {
		for _, va := range l.vas {
			if pvOf(va) == pv && volume.Fenced(va) {
				return true
			}
		}
		return slices.ContainsFunc(walks, func(w *walk) bool { return w.moves(pv) })
	}
	out := releaseHold(node, hac.driver, rec, busy, func(h volume.Handle) bool {
		return hac.recovered == nil || hac.recovered(h, node.Name)
	})
	dropWord := word != "" && wordDone(node, hac.driver, out.rec)
	if !out.changed && !dropWord {
		return nil
	}
	if out.rec == nil {
		if err := hac.unfence(ctx, node.Name); err != nil {
			return err
		}
	} else if !out.changed {
		out.rec = &rec
	}
	patch, err := holdPatch(node, hac.driver, out.rec, dropWord)
	if err != nil {
		return err
	}
	patch.unchangedSince()
	updated, err := hac.patchNode(ctx, patch)
	if err != nil {
		return fmt.Errorf("releasing the hold of node %s: %w", node.Name, err)
	}
	l.putNode(updated, hac.driver)
	hac.settle(node)
	if out.word {
		hac.event(node, v1.EventTypeNormal, UnfenceEventReason, "Taken for clean of the volumes of %s: %s", hac.driver, word)
	}
	if out.rec == nil {
		hac.event(node, v1.EventTypeNormal, UnheldEventReason, "Pods may use volumes of %s here again", hac.driver)
	}
	return nil
}

// dropUnusedWord takes away a person's word that no driver's hold can use, so
// that it is not held against a later one.
func (hac *haController) dropUnusedWord(ctx context.Context, node *v1.Node) error {
	word := node.Annotations[volume.AnnotationUnfence]
	if word == "" || len(holdRecords(node)) > 0 {
		return nil
	}
	patch, err := holdPatch(node, hac.driver, nil, true)
	if err != nil {
		return err
	}
	patch.unchangedSince()
	if _, err := hac.patchNode(ctx, patch); err != nil {
		return fmt.Errorf("removing annotation %s of node %s: %w", volume.AnnotationUnfence, node.Name, err)
	}
	hac.event(node, v1.EventTypeNormal, UnfenceEventReason, "Nothing is fenced here: %s", word)
	return nil
}

// unfence gives the node its access back. Where the fence is an unpublish,
// there is nothing to give back and the Fencer says so at once.
func (hac *haController) unfence(ctx context.Context, node string) error {
	if hac.fencer == nil {
		return nil
	}
	err := hac.write(ctx, func(ctx context.Context) error { return hac.fencer.Unfence(ctx, node) })
	if err != nil {
		return fmt.Errorf("lifting the fence of node %s: %w", node, err)
	}
	return nil
}
