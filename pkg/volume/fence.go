package volume

import (
	"encoding/json"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FenceRecord is the value of AnnotationFenced: the whole plan of a fenced
// walk, written on every VolumeAttachment of the closure before the first
// ControllerUnpublishVolume. From then on there is no way back: whoever leads
// finishes the plan from the record alone.
type FenceRecord struct {
	Node string `json:"node"`
	// BootID is node.status.nodeInfo.bootID when the record was written.
	BootID  string      `json:"bootID,omitempty"`
	Time    metav1.Time `json:"time"`
	Targets []Target    `json:"targets"`
	// Reason is the sentence that the events of the walk carry.
	Reason string `json:"reason,omitempty"`
}

// Encode renders the record as the annotation's value.
func (r FenceRecord) Encode() (string, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding fence record: %w", err)
	}
	return string(b), nil
}

// Fenced reports whether the VolumeAttachment carries a fence record, readable
// or not: an unreadable one still forbids publishing.
func Fenced(va *storagev1.VolumeAttachment) bool {
	_, ok := va.Annotations[AnnotationFenced]
	return ok
}

// FenceRecordOf reads the record of a VolumeAttachment. ok is false where there
// is none; err tells of one that cannot be read.
func FenceRecordOf(va *storagev1.VolumeAttachment) (rec FenceRecord, ok bool, err error) {
	value, ok := va.Annotations[AnnotationFenced]
	if !ok {
		return FenceRecord{}, false, nil
	}
	if err := json.Unmarshal([]byte(value), &rec); err != nil {
		return FenceRecord{}, true, fmt.Errorf("reading annotation %s of VolumeAttachment %s: %w", AnnotationFenced, va.Name, err)
	}
	return rec, true, nil
}

// HoldRecord is the value of the Node annotation HoldKey(driver): since when
// the node is held, and for which volumes.
type HoldRecord struct {
	// Time is when the first of the volumes was held.
	Time metav1.Time `json:"time"`
	// BootID is the node's boot at the time of the hold; another one later
	// proves that nothing of the old boot is mounted.
	BootID string `json:"bootID,omitempty"`
	// Volumes are the PersistentVolumes held, by name, with what is still to be
	// seen before the node may have them again.
	Volumes []HeldVolume `json:"volumes"`
}

// HeldVolume is one volume of a HoldRecord.
type HeldVolume struct {
	PV     string `json:"pv"`
	Handle Handle `json:"handle"`
	// Fenced is true when the volume was unpublished while the node may still
	// have had it mounted: the node must be seen clean before it may have the
	// volume again.
	Fenced bool `json:"fenced,omitempty"`
	// Time is since when the node is held for this volume; zero, as in records
	// of older versions, means since the record's own time.
	Time metav1.Time `json:"time,omitzero"`
}

// HeldSince is since when the node is held for v, a volume of the record.
func (r HoldRecord) HeldSince(v HeldVolume) metav1.Time {
	if v.Time.IsZero() {
		return r.Time
	}
	return v.Time
}

// Encode renders the record as the annotation's value.
func (r HoldRecord) Encode() (string, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encoding hold record: %w", err)
	}
	return string(b), nil
}

// ParseHoldRecord reads the value of a Node annotation HoldKey(driver).
func ParseHoldRecord(value string) (HoldRecord, error) {
	var rec HoldRecord
	if err := json.Unmarshal([]byte(value), &rec); err != nil {
		return HoldRecord{}, fmt.Errorf("reading hold record: %w", err)
	}
	return rec, nil
}
