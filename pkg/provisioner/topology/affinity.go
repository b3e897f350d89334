package topology

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// NodeAffinity turns Volume.accessible_topology of a driver's reply into
// spec.nodeAffinity of a PersistentVolume: a term for each distinct topology,
// with its keys in order. Nil if the reply says nothing: no topologies, or only
// such without segments, of which the API server would reject the affinity. One
// topology without segments among others says nothing either, and is left out.
func NodeAffinity(accessible []*csi.Topology) *v1.VolumeNodeAffinity {
	var segments []Segment
	for _, t := range accessible {
		if len(t.GetSegments()) > 0 {
			segments = append(segments, SegmentOf(t.GetSegments()))
		}
	}
	if len(segments) == 0 {
		return nil
	}
	selector := &v1.NodeSelector{}
	for _, s := range distinct(segments) {
		labels := s.Labels()
		var term v1.NodeSelectorTerm
		for _, key := range slices.Sorted(maps.Keys(labels)) {
			term.MatchExpressions = append(term.MatchExpressions, v1.NodeSelectorRequirement{
				Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{labels[key]},
			})
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
	}
	return &v1.VolumeNodeAffinity{Required: selector}
}

// Check tells what is wrong with accessible_topology of a driver's reply: keys
// and values that cannot be labels. The API server would reject the
// PersistentVolume for them, again and again.
func Check(accessible []*csi.Topology) error {
	var errs []error
	for _, t := range accessible {
		for _, key := range slices.Sorted(maps.Keys(t.GetSegments())) {
			for _, problem := range validation.IsQualifiedName(key) {
				errs = append(errs, fmt.Errorf("the topology key %q is no label key: %s", key, problem))
			}
			for _, problem := range validation.IsValidLabelValue(t.GetSegments()[key]) {
				errs = append(errs, fmt.Errorf("the value %q of the topology key %q is no label value: %s", t.GetSegments()[key], key, problem))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the driver's reply has an accessible_topology that no node can have: %w", err)
	}
	return nil
}

// Matches reports whether the affinity admits a node with these labels. None
// admits every node, and one that cannot be parsed none.
func Matches(affinity *v1.VolumeNodeAffinity, labels map[string]string) bool {
	return Matcher(affinity)(labels)
}

// Matcher is Matches for many nodes: the affinity is read once.
func Matcher(affinity *v1.VolumeNodeAffinity) func(labels map[string]string) bool {
	if affinity == nil || affinity.Required == nil {
		return func(map[string]string) bool { return true }
	}
	selector, err := nodeaffinity.NewNodeSelector(affinity.Required)
	if err != nil {
		return func(map[string]string) bool { return false }
	}
	return func(labels map[string]string) bool {
		return selector.Match(&v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
	}
}
