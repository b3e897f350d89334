package faults

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/state"
	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

// The check of W2 finds a VolumeAttachment that went too soon, and no other.
func TestCheckDetached(t *testing.T) {
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }
	pv := "a"
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{
		NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv},
	}}
	op := func(second int, op, node string) state.Entry {
		return state.Entry{Time: at(second), Op: op, Volume: state.VolumeID(pv), Node: node}
	}
	gone := []rig.Change{{At: at(10), Verb: "deleted", Old: va}}
	for name, tc := range map[string]struct {
		changes []rig.Change
		ledger  []state.Entry
		bad     bool
	}{
		"never published":     {gone, nil, false},
		"unpublished":         {gone, []state.Entry{op(1, state.OpPublish, "n1"), op(9, state.OpUnpublish, "n1")}, false},
		"still published":     {gone, []state.Entry{op(1, state.OpPublish, "n1")}, true},
		"unpublished later":   {gone, []state.Entry{op(1, state.OpPublish, "n1"), op(11, state.OpUnpublish, "n1")}, true},
		"published again":     {gone, []state.Entry{op(1, state.OpPublish, "n1"), op(2, state.OpUnpublish, "n1"), op(3, state.OpPublish, "n1")}, true},
		"published elsewhere": {gone, []state.Entry{op(1, state.OpPublish, "n2")}, false},
		"before the play":     {[]rig.Change{{At: at(0), Verb: "deleted", Old: va}}, []state.Entry{op(0, state.OpPublish, "n1")}, false},
		"updated":             {[]rig.Change{{At: at(10), Verb: "updated", Old: va, New: va}}, []state.Entry{op(1, state.OpPublish, "n1")}, false},
	} {
		if err := checkDetached(tc.changes, tc.ledger, at(1)); (err != nil) != tc.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}
