package hacontroller

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/internal/kube"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// Without Targets the sender of a name vouches that the volume's user cannot
// write. What it meant is bound when the name arrives: one attachment and the
// pods that used it then.

// bindVouched binds m, or says why the name means nothing.
func (hac *haController) bindVouched(ctx context.Context, m *mark) (why string) {
	var current []*storagev1.VolumeAttachment
	for _, va := range hac.attachments(vasByPV, m.pv) {
		if va.DeletionTimestamp == nil {
			current = append(current, va)
		}
	}
	pods, claimed := hac.users(m.pv)
	switch {
	case len(current) == 0:
		return "it has no attachment"
	case len(current) > 1:
		hac.refuseAll(ctx, current, pods, ReasonSeveralAttachments)
		return ReasonSeveralAttachments.Sentence()
	case !claimed:
		return "no claim is bound to it"
	}
	va := current[0]
	m.vaName = va.Name
	m.vas = map[types.UID]string{va.UID: va.Spec.NodeName}
	m.pods = sets.New[types.UID]()
	for _, pod := range pods {
		if usesHere(pod, va) {
			m.pods.Insert(pod.UID)
		}
	}
	return ""
}

// refuseAll shows a refusal on the pods, or where there are none on the
// attachments.
func (hac *haController) refuseAll(ctx context.Context, vas []*storagev1.VolumeAttachment, pods []*v1.Pod, reason Reason) {
	for _, pod := range pods {
		hac.refuse(ctx, pod, reason, RefusedEventReason)
	}
	if len(pods) > 0 {
		return
	}
	for _, va := range vas {
		hac.refuse(ctx, va, reason, RefusedEventReason)
	}
}

// usesHere reports whether pod, which uses the volume, does so through va. A
// pod without a node counts, unless it was never scheduled; a finished one uses
// nothing any more.
func usesHere(pod *v1.Pod, va *storagev1.VolumeAttachment) bool {
	if kube.Finished(pod) {
		return false
	}
	if pod.Spec.NodeName == "" {
		return pod.Status.Phase != v1.PodPending
	}
	return va.Spec.NodeName == "" || pod.Spec.NodeName == va.Spec.NodeName
}

// syncVouched works off the marks of one node, side by side.
func (hac *haController) syncVouched(ctx context.Context, node string) (time.Duration, error) {
	marks := hac.marksOn(node)
	err := each(hac.metrics, marks, func(_ int, m *mark) error { return hac.walkVouched(ctx, m) })
	if err != nil {
		return 0, err
	}
	if len(hac.marksOn(node)) == 0 {
		hac.pruneTracks(node, nil)
		return 0, nil
	}
	return hac.interval, nil
}

// walkVouched takes one mark as far as it goes now.
func (hac *haController) walkVouched(ctx context.Context, m *mark) error {
	va, err := hac.liveVA(ctx, m.vaName)
	if err != nil {
		return err
	}
	if va == nil || !hasKey(m.vas, va.UID) {
		hac.finishVouched(ctx, m)
		return nil
	}
	t := hac.track(va.UID, va.Spec.NodeName, m.received)
	users, err := hac.liveUsers(ctx, m.pv, va)
	if err != nil {
		return err
	}
	if pod, reason := hac.vetoVouched(m, users); reason != "" {
		hac.refuse(ctx, pod, reason, RefusedEventReason)
		hac.drop(m)
		return nil
	}
	if len(users) > 0 {
		if err := hac.deleteVouched(ctx, t, m, users); err != nil {
			return err
		}
		if users, err = hac.liveUsers(ctx, m.pv, va); err != nil {
			return err
		}
		if len(users) > 0 {
			for _, pod := range users {
				hac.refuse(ctx, pod, ReasonFinalizers, RefusedEventReason)
			}
			return nil
		}
	}
	hac.reached(ctx, t, []string{m.pv}, MilestonePodsGone)
	if va.DeletionTimestamp == nil {
		if err := hac.detach(ctx, va); err != nil {
			return err
		}
	}
	hac.reached(ctx, t, []string{m.pv}, MilestoneVADeleted)
	hac.finishVouched(ctx, m)
	return nil
}

func hasKey(m map[types.UID]string, uid types.UID) bool {
	_, ok := m[uid]
	return ok
}

// finishVouched ends a mark: its attachment is deleted or gone.
func (hac *haController) finishVouched(ctx context.Context, m *mark) {
	klog.FromContext(ctx).Info("Finished failover", "persistentVolume", m.pv, "took", hac.clock.Since(m.received))
	hac.drop(m)
}

// vetoVouched finds a pod that must not lose the volume.
func (hac *haController) vetoVouched(m *mark, users []*v1.Pod) (*v1.Pod, Reason) {
	for _, pod := range users {
		switch {
		case !hac.selector.selects(pod):
			return pod, ReasonNotSelected
		case !m.pods.Has(pod.UID):
			return pod, ReasonReplaced
		case hac.strict:
			if reason := hac.outOfScope(pod); reason != "" {
				return pod, reason
			}
		}
	}
	return nil, ""
}

// outOfScope is why the strict scope leaves pod alone, or "".
func (hac *haController) outOfScope(pod *v1.Pod) Reason {
	return strictVeto(pod, pod.Annotations[volume.AnnotationAllowOwnerless] == "true", kube.IsMirror(pod))
}

// deleteVouched deletes the pods that are not deleted yet.
func (hac *haController) deleteVouched(ctx context.Context, t *track, m *mark, users []*v1.Pod) error {
	return each(hac.metrics, users, func(_ int, pod *v1.Pod) error {
		if forced(pod) {
			return nil
		}
		deleted, err := hac.forceDelete(ctx, pod)
		if deleted {
			hac.reached(ctx, t, []string{m.pv}, MilestonePodDeleted)
		}
		return err
	})
}

// forced reports whether only finalizers keep the pod: it is already deleted
// without grace.
func forced(pod *v1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// forceDelete deletes a pod and says so where it really did.
func (hac *haController) forceDelete(ctx context.Context, pod *v1.Pod) (deleted bool, err error) {
	err = hac.deletePod(ctx, pod)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil: // a conflict: the pod of this UID is gone, which the next read shows
		return false, fmt.Errorf("deleting pod %s: %w", podName(pod), err)
	}
	hac.event(pod, v1.EventTypeWarning, PodDeleteEventReason, "Deleted, since a volume that it uses fails on node %s%s", pod.Spec.NodeName, hac.assurance())
	return true, nil
}

// detach deletes a VolumeAttachment and says so where it really did.
func (hac *haController) detach(ctx context.Context, va *storagev1.VolumeAttachment) error {
	err := hac.deleteVA(ctx, va)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil: // a conflict: the one of this UID is gone, which the next read shows
		return fmt.Errorf("deleting VolumeAttachment %s: %w", va.Name, err)
	}
	hac.event(va, v1.EventTypeWarning, VADeleteEventReason, "Deleted, since volume %s fails on node %s%s", pvOf(va), va.Spec.NodeName, hac.assurance())
	return nil
}

// liveUsers reads anew the pods that use pv through va.
func (hac *haController) liveUsers(ctx context.Context, pv string, va *storagev1.VolumeAttachment) ([]*v1.Pod, error) {
	candidates, _ := hac.users(pv)
	var mu sync.Mutex
	var users []*v1.Pod
	err := each(hac.metrics, candidates, func(_ int, pod *v1.Pod) error {
		if !usesHere(pod, va) {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, DefaultRequestTimeout)
		defer cancel()
		live, err := hac.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return fmt.Errorf("reading pod %s: %w", podName(pod), err)
		}
		if hac.volumesOf(live)[pv] && usesHere(live, va) {
			mu.Lock()
			users = append(users, live)
			mu.Unlock()
		}
		return nil
	})
	return users, err
}
