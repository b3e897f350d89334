package failover

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Values of volume.ScopeKey.
const (
	scopeEnabled  = "enabled"
	scopeDisabled = "disabled"
)

// checkPods asks of every pod of the closure whether it may be touched (R4,
// R6). One that may not vetoes the whole.
func (d *decider) checkPods(a *Answer, c *closure, view *nodeView) {
	for _, p := range c.pods {
		d.checkScope(a, p.pod)
		d.checkKind(a, p.pod)
		d.checkStopping(a, p.pod, view)
		d.checkUnsafe(a, p)
		d.checkAffinity(a, p.pod, view)
	}
}

// checkScope reads the opt-out: on the pod, annotation over label, else on its
// namespace. A value that is neither word is no consent.
func (d *decider) checkScope(a *Answer, pod *v1.Pod) {
	value, where := scopeOf(pod), "pod"
	if value == "" {
		ns := d.s.Namespaces[pod.Namespace]
		if ns == nil {
			a.add(ActionWait, CodeNamespaceMissing, time.Time{}, "there is no Namespace "+pod.Namespace+", which may opt out")
			return
		}
		value, where = scopeOf(ns), "namespace"
	}
	switch value {
	case "", scopeEnabled:
	case scopeDisabled:
		a.add(ActionRefuse, CodeOptedOut, time.Time{}, fmt.Sprintf("pod %s is opted out by %s=%s on the %s", podName(pod), volume.ScopeKey, value, where))
	default:
		a.add(ActionRefuse, CodeScopeInvalid, time.Time{}, fmt.Sprintf("pod %s: %s=%q on the %s is neither %s nor %s", podName(pod), volume.ScopeKey, value, where, scopeEnabled, scopeDisabled))
	}
}

func scopeOf(obj metav1.Object) string {
	if value, ok := obj.GetAnnotations()[volume.ScopeKey]; ok {
		return value
	}
	return obj.GetLabels()[volume.ScopeKey]
}

// checkKind refuses pods that would not come back elsewhere, or that a deletion
// does not stop.
func (d *decider) checkKind(a *Answer, pod *v1.Pod) {
	owner := metav1.GetControllerOf(pod)
	switch {
	case kube.IsMirror(pod) || owner != nil && owner.Kind == "Node":
		a.add(ActionRefuse, CodeMirror, time.Time{}, "pod "+podName(pod)+" is static: its kubelet runs it from a file and a deletion does not stop it")
	case owner != nil && owner.Kind == "DaemonSet":
		a.add(ActionRefuse, CodeDaemonSet, time.Time{}, "pod "+podName(pod)+" belongs to a DaemonSet and would be made again on the same node")
	case owner == nil && pod.Annotations[volume.AnnotationAllowOwnerless] == "true":
		a.add(ActionMove, CodeOwnerlessAllowed, time.Time{}, "pod "+podName(pod)+" has no controller and allows to be deleted for good")
	case owner == nil:
		a.add(ActionRefuse, CodeOwnerless, time.Time{}, fmt.Sprintf("pod %s has no controller that would make it again; annotate it %s=true to have it deleted all the same", podName(pod), volume.AnnotationAllowOwnerless))
	}
	if pod.Status.Phase == v1.PodPending {
		a.add(ActionRefuse, CodeNotStarted, time.Time{}, "pod "+podName(pod)+" has not started yet; if it cannot start here, delete it by hand")
	}
}

// checkStopping leaves alone a pod that its kubelet is stopping, unless we have
// asked for that, or it takes so long that the kubelet must be stuck.
func (d *decider) checkStopping(a *Answer, pod *v1.Pod, view *nodeView) {
	if pod.DeletionTimestamp == nil || !view.ready {
		return
	}
	if _, granted := d.s.Memory.Grants[pod.UID]; granted {
		return
	}
	until := pod.DeletionTimestamp.Add(stopSlack)
	switch {
	case d.now.Before(until):
		a.add(ActionWait, CodeBeingStopped, until, fmt.Sprintf("pod %s is being stopped by the kubelet, which has until %s", podName(pod), stamp(until)))
	case !d.canFence(view):
		a.add(ActionRefuse, CodeCannotStop, time.Time{}, fmt.Sprintf("pod %s should have stopped by %s and nothing can be fenced; set --fence, or power off node %s and taint it %s", podName(pod), stamp(pod.DeletionTimestamp.Time), view.name, v1.TaintNodeOutOfService))
	default:
		a.add(ActionMove, CodeStopStuck, time.Time{}, fmt.Sprintf("pod %s should have stopped by %s", podName(pod), stamp(pod.DeletionTimestamp.Time)))
	}
}

func podName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }
