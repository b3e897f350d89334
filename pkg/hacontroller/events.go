package hacontroller

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

// Reasons of events, for machines.
const (
	// PodDeleteEventReason: a pod was deleted because a volume failed.
	PodDeleteEventReason = "ForceDeleted"
	// VADeleteEventReason: a VolumeAttachment was deleted because a volume failed.
	VADeleteEventReason = "ForceDetached"
	// PodEvictEventReason: a pod was evicted because a volume failed.
	PodEvictEventReason = "FailoverEvicted"
	// RefusedEventReason: something stands in the way of moving a pod.
	RefusedEventReason = "FailoverRefused"
	// EndedEventReason: asking did not help by the deadline; it is asked again.
	EndedEventReason = "FailoverEnded"
	// FenceFailedEventReason: the storage did not acknowledge a fence yet.
	FenceFailedEventReason = "FenceFailed"
	// StepFailedEventReason: the API server does not take a step; it is tried
	// again.
	StepFailedEventReason = "FailoverStepFailed"
	// DoneEventReason, on the Node: the volumes are off it.
	DoneEventReason = "FailoverDone"
	// HeldEventReason and UnheldEventReason, on the Node: its hold came or went.
	HeldEventReason   = "FailoverHold"
	UnheldEventReason = "FailoverHoldReleased"
	// UnfenceEventReason, on the Node: a person's word was acted on.
	UnfenceEventReason = "UnfenceAccepted"

	// DisruptionReason is the reason of the DisruptionTarget condition.
	DisruptionReason = "DeletionByHASidecar"
)

// Reason says, for machines, why something is not done. It is a label of the
// metric of refusals.
type Reason string

// The refusals.
const (
	ReasonMirrorPod          Reason = "MirrorPod"
	ReasonDaemonSet          Reason = "DaemonSet"
	ReasonOwnerless          Reason = "Ownerless"
	ReasonNotSelected        Reason = "PodNotSelected"
	ReasonNotUsingVolume     Reason = "NotUsingVolume"
	ReasonReplaced           Reason = "PodReplaced"
	ReasonClosureChanged     Reason = "ClosureChanged"
	ReasonSeveralAttachments Reason = "SeveralAttachments"
	ReasonNoFence            Reason = "NoFence"
	ReasonFinalizers         Reason = "PodFinalizers"
	ReasonDisruptionBudget   Reason = "DisruptionBudget"
	ReasonSeveralBudgets     Reason = "SeveralDisruptionBudgets"
	ReasonThrottled          Reason = "Throttled"
	ReasonEvictionForbidden  Reason = "EvictionForbidden"
	ReasonEvictionFailed     Reason = "EvictionFailed"
	ReasonNotStopped         Reason = "NotStopped"
	ReasonUnreadableHold     Reason = "UnreadableHold"
	ReasonUnreadableRecord   Reason = "UnreadableRecord"
	ReasonAttachmentUnknown  Reason = "AttachmentUnknown"
	ReasonHoldLost           Reason = "HoldLost"
)

// sentences say each refusal to a person, with the next step.
var sentences = map[Reason]string{
	ReasonMirrorPod:          "it is a static pod, which only its node can stop",
	ReasonDaemonSet:          "a pod of a DaemonSet would come back on the same node",
	ReasonOwnerless:          "no controller would make it again; annotate it ha-sidecar.io/allow-ownerless=true to move it all the same",
	ReasonNotSelected:        "the pod selector does not select it, and its volume must not be detached under it",
	ReasonNotUsingVolume:     "it does not use a volume that is to be moved",
	ReasonReplaced:           "it took the place of the pod that was marked; it takes a new signal to move it",
	ReasonClosureChanged:     "it uses the volume on this node and was not known when the move was decided; it is being decided again",
	ReasonSeveralAttachments: "the volume is attached to several nodes, and the signal does not say which one fails",
	ReasonNoFence:            "nothing can cut the node off from the volume; declare a fence with --fence, or have the node powered off and tainted out-of-service",
	ReasonFinalizers:         "it is deleted, and its finalizers keep it",
	ReasonDisruptionBudget:   "a disruption budget does not allow its eviction; --override-pdb would",
	ReasonSeveralBudgets:     "more than one disruption budget selects it, which eviction does not support",
	ReasonThrottled:          "the API server throttles evictions",
	ReasonEvictionForbidden:  "its eviction is forbidden",
	ReasonEvictionFailed:     "its eviction failed",
	ReasonNotStopped:         "it was evicted and did not stop in time",
	ReasonUnreadableHold:     "the annotation that holds the node cannot be read; remove it once the node is clean",
	ReasonUnreadableRecord:   "its fence record cannot be read or is another's; remove the annotation once you know that the node does not use the volume",
	ReasonAttachmentUnknown:  "a VolumeAttachment of the move is not known here yet",
	ReasonHoldLost:           "the taint or the annotation that holds the node is taken away again and again; find out by whom",
}

// Sentence says the reason to a person.
func (r Reason) Sentence() string {
	if s, ok := sentences[r]; ok {
		return s
	}
	return string(r)
}

func (hac *haController) event(obj runtime.Object, eventtype, reason, format string, args ...any) {
	if hac.recorder != nil {
		hac.recorder.Eventf(obj, eventtype, reason, format, args...)
	}
}

// object is what an event or a refusal can be about.
type object interface {
	runtime.Object
	metav1.Object
}

// refusal is what was last said about an object.
type refusal struct {
	reason Reason
	at     time.Time
}

// refuseAgain is when the same refusal is told once more. The API server keeps
// events for an hour unless told otherwise.
const refuseAgain = 30 * time.Minute

// refuse makes a refusal seen: once per object and reason, until another reason
// takes its place or the event is about to be forgotten.
func (hac *haController) refuse(ctx context.Context, obj object, reason Reason, eventReason string) {
	now := hac.clock.Now()
	hac.mu.Lock()
	last := hac.refused[obj.GetUID()]
	if last.reason == reason && now.Sub(last.at) < refuseAgain {
		hac.mu.Unlock()
		return
	}
	hac.refused[obj.GetUID()] = refusal{reason, now}
	hac.mu.Unlock()
	if last.reason != reason {
		hac.metrics.refusals.WithLabelValues(string(reason)).Inc()
	}
	klog.FromContext(ctx).Info("Not moved", "object", klog.KObj(obj), "reason", reason, "explanation", reason.Sentence())
	hac.event(obj, v1.EventTypeWarning, eventReason, "Not moved off a failing volume: %s", reason.Sentence())
}

// assurance is why it is safe to remove what a fenced node may still use.
func (hac *haController) assurance() string {
	if hac.targeter == nil {
		return ""
	}
	return "; the driver has acknowledged that the node cannot write any more"
}

// settle forgets the refusals about objects that are no longer refused.
func (hac *haController) settle(obj object) {
	hac.mu.Lock()
	defer hac.mu.Unlock()
	delete(hac.refused, obj.GetUID())
}

// strictVeto is why the strict scope must not touch pod, or "".
func strictVeto(pod *v1.Pod, allowOwnerless, mirror bool) Reason {
	owner := metav1.GetControllerOf(pod)
	switch {
	case mirror:
		return ReasonMirrorPod
	case owner == nil && !allowOwnerless:
		return ReasonOwnerless
	case owner != nil && owner.Kind == "DaemonSet":
		return ReasonDaemonSet
	}
	return ""
}

func podName(pod *v1.Pod) string { return fmt.Sprintf("%s/%s", pod.Namespace, pod.Name) }
