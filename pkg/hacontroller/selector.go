package hacontroller

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// podSelector evaluates list options on pods already in hand. The informer is
// not restricted by them: the pods that are not selected decide as well, since
// no volume may be detached under one of them.
type podSelector struct {
	labels labels.Selector
	fields fields.Selector
}

func newPodSelector(opts metav1.ListOptions) (podSelector, error) {
	byLabel, err := labels.Parse(opts.LabelSelector)
	if err != nil {
		return podSelector{}, fmt.Errorf("hacontroller: reading the pods' label selector: %w", err)
	}
	byField, err := fields.ParseSelector(opts.FieldSelector)
	if err != nil {
		return podSelector{}, fmt.Errorf("hacontroller: reading the pods' field selector: %w", err)
	}
	known := podFields(&v1.Pod{})
	for _, r := range byField.Requirements() {
		if !known.Has(r.Field) {
			return podSelector{}, fmt.Errorf("hacontroller: pods have no selectable field %q", r.Field)
		}
	}
	return podSelector{labels: byLabel, fields: byField}, nil
}

func (s podSelector) selects(pod *v1.Pod) bool {
	return s.labels.Matches(labels.Set(pod.Labels)) && s.fields.Matches(podFields(pod))
}

// podFields are the fields that the API server selects pods by.
func podFields(pod *v1.Pod) fields.Set {
	return fields.Set{
		"metadata.name":            pod.Name,
		"metadata.namespace":       pod.Namespace,
		"spec.nodeName":            pod.Spec.NodeName,
		"spec.restartPolicy":       string(pod.Spec.RestartPolicy),
		"spec.schedulerName":       pod.Spec.SchedulerName,
		"spec.serviceAccountName":  pod.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase":             string(pod.Status.Phase),
		"status.podIP":             pod.Status.PodIP,
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	}
}
