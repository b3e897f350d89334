package volume

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestHeldSince: a volume has a time of its own, and one of an older record has
// that of the record.
func TestHeldSince(t *testing.T) {
	const older = `{"time":"2026-01-01T12:00:00Z","volumes":[{"pv":"a","handle":"h-a"}]}`
	rec, err := ParseHoldRecord(older)
	if err != nil {
		t.Fatal(err)
	}
	value, err := rec.Encode()
	if err != nil || value != older {
		t.Errorf("an absent time is written as %s, error %v", value, err)
	}
	late := metav1.NewTime(rec.Time.Add(9 * time.Minute))
	rec.Volumes = append(rec.Volumes, HeldVolume{PV: "b", Handle: "h-b", Time: late})
	if value, err = rec.Encode(); err != nil || !strings.Contains(value, `"time":"2026-01-01T12:09:00Z"`) {
		t.Errorf("record %s, error %v", value, err)
	}
	if rec, err = ParseHoldRecord(value); err != nil {
		t.Fatal(err)
	}
	for i, want := range []metav1.Time{rec.Time, late} {
		if got := rec.HeldSince(rec.Volumes[i]); !got.Equal(&want) {
			t.Errorf("%s is held since %s, want %s", rec.Volumes[i].PV, got, want)
		}
	}
}
