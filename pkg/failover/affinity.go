package failover

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
)

// checkAffinity refuses a pod that must run on the node of another one: moved
// away from it, it would stay Pending for ever.
func (d *decider) checkAffinity(a *Answer, pod *v1.Pod, view *nodeView) {
	for _, term := range requiredAffinity(pod) {
		if term.TopologyKey != v1.LabelHostname {
			continue
		}
		if other := d.bound(pod, &term, view.name); other != nil {
			a.add(ActionRefuse, CodePodAffinity, time.Time{}, fmt.Sprintf("pod %s requires (podAffinity) to run on the node of pod %s, so it cannot be placed elsewhere; move both by hand, or prefer instead of require", podName(pod), podName(other)))
			return
		}
	}
}

func requiredAffinity(pod *v1.Pod) []v1.PodAffinityTerm {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAffinity == nil {
		return nil
	}
	return pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution
}

// bound finds another pod on the node that the term matches.
func (d *decider) bound(pod *v1.Pod, term *v1.PodAffinityTerm, node string) *v1.Pod {
	selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
	if err != nil {
		// The API server lets no such term in; a pod that carries one all the
		// same may be bound to anything.
		selector = labels.Everything()
	}
	for _, other := range d.s.Pods[node] {
		if other.UID == pod.UID || kube.Finished(other) || other.Spec.NodeName != node {
			continue
		}
		if d.inNamespaces(pod, term, other.Namespace) && selector.Matches(labels.Set(other.Labels)) {
			return other
		}
	}
	return nil
}

// inNamespaces reports whether the term looks at a namespace.
func (d *decider) inNamespaces(pod *v1.Pod, term *v1.PodAffinityTerm, namespace string) bool {
	if slices.Contains(term.Namespaces, namespace) {
		return true
	}
	if term.NamespaceSelector == nil {
		return len(term.Namespaces) == 0 && namespace == pod.Namespace
	}
	selector, err := metav1.LabelSelectorAsSelector(term.NamespaceSelector)
	ns := d.s.Namespaces[namespace]
	if err != nil || ns == nil {
		return true
	}
	return selector.Matches(labels.Set(ns.Labels))
}
