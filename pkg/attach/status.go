package attach

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// maxMessage is the longest message, in bytes, that the API server takes in a
// VolumeError.
const maxMessage = 1024

// Reasons of the events on VolumeAttachments.
const (
	ReasonAttachFailed     = "AttachFailed"
	ReasonDetachFailed     = "DetachFailed"
	ReasonWaitingForDetach = "WaitingForDetach"
	ReasonNodeHeld         = "NodeHeld"
	ReasonNodeIDUnknown    = "NodeIDUnknown"
	ReasonContradiction    = "DriverContradictsItself"
	// ReasonOrphaned is on the PersistentVolume.
	ReasonOrphaned = "PublishedForNobody"
)

// cut makes a message fit for the API: valid UTF-8, at most maxMessage bytes,
// and no rune cut in two.
func cut(message string) string {
	message = strings.ToValidUTF8(message, "\uFFFD")
	if len(message) <= maxMessage {
		return message
	}
	end := maxMessage - len("...")
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "..."
}

// codeOf is the gRPC code of an error of the driver; ok is false for others.
func codeOf(err error) (code codes.Code, ok bool) {
	st, ok := status.FromError(err)
	if !ok || st.Code() == codes.OK {
		return codes.OK, false
	}
	return st.Code(), true
}

// volumeError renders an error for the status.
func volumeError(now metav1.Time, err error) *storagev1.VolumeError {
	verr := &storagev1.VolumeError{Time: now, Message: cut(err.Error())}
	if code, ok := codeOf(err); ok {
		number := int32(code)
		verr.ErrorCode = &number
	}
	return verr
}

// sameError reports whether the status says already what b says.
func sameError(a, b *storagev1.VolumeError) bool {
	if a == nil || a.Message != b.Message || (a.ErrorCode == nil) != (b.ErrorCode == nil) {
		return false
	}
	return a.ErrorCode == nil || *a.ErrorCode == *b.ErrorCode
}

// report shows an error in the VolumeAttachment's status and as an event, once
// for as long as it stays the same. It tells whether it was news, and why it could
// not be written.
func (c *Controller) report(ctx context.Context, va *storagev1.VolumeAttachment, detach bool, err error) (news bool, unwritten error) {
	verr := volumeError(metav1.NewTime(c.cfg.Clock.Now()), err)
	field, reason, known := "attachError", ReasonAttachFailed, va.Status.AttachError
	if detach {
		field, reason, known = "detachError", ReasonDetachFailed, va.Status.DetachError
	}
	if sameError(known, verr) || !c.cfg.IsLeader() {
		return false, nil
	}
	c.tell(va, v1.EventTypeWarning, reason, verr.Message)
	// A null code takes away one of an earlier error, which a merge would keep.
	patch := object{"time": verr.Time, "message": verr.Message, "errorCode": verr.ErrorCode}
	_, unwritten = c.patchVA(ctx, va, false, nil, object{field: patch}, "status")
	if apierrors.IsNotFound(unwritten) || apierrors.IsConflict(unwritten) {
		return true, nil // another one, or none: nobody is to be told
	}
	if unwritten != nil {
		klog.FromContext(ctx).Error(unwritten, "Failed to show an error in the status", "volumeAttachment", klog.KObj(va), "error", verr.Message)
	}
	return true, unwritten
}

// recordError says why a VolumeAttachment with a fence record is not attached,
// and what to do if that lasts.
func recordError(va *storagev1.VolumeAttachment) error {
	rec, _, err := volume.FenceRecordOf(va)
	own := slices.ContainsFunc(rec.Targets, func(t volume.Target) bool { return t.VolumeAttachmentUID == va.UID })
	why := "the failover that wrote it has not finished; if none is under way, delete this VolumeAttachment"
	switch {
	case err != nil:
		why = "it cannot be read; delete this VolumeAttachment"
	case !own:
		why = "it was written for another one, so that nobody acts on it; delete this VolumeAttachment"
	}
	return fmt.Errorf("not attached because of annotation %s: %s, and Kubernetes makes it again where a pod needs it", volume.AnnotationFenced, why)
}

// tell makes an event, unless the same was the last one of this VolumeAttachment.
func (c *Controller) tell(va *storagev1.VolumeAttachment, eventType, reason, message string) (first bool) {
	if !c.ledger.firstTold(va.UID, reason+" "+message) {
		return false
	}
	if c.cfg.Recorder != nil {
		c.cfg.Recorder.Event(va, eventType, reason, message)
	}
	return true
}

// commit records that the volume is attached, and with which publish context.
// It is bound to the UID alone: it is true whatever else has been written
// meanwhile.
func (c *Controller) commit(ctx context.Context, va *storagev1.VolumeAttachment, metadata map[string]string) error {
	fields := object{}
	for k := range va.Status.AttachmentMetadata {
		fields[k] = nil
	}
	for k, v := range metadata {
		fields[k] = v
	}
	st := object{"attached": true, "attachError": nil, "attachmentMetadata": fields}
	if len(fields) == 0 {
		st["attachmentMetadata"] = nil
	}
	_, err := c.patchVA(ctx, va, false, nil, st, "status")
	return err
}
