package main

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ha-sidecar/ha-sidecar/test/rig"
)

func podSeen(bad bool) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0"}}
	pod.Status.VolumeHealth = []v1.PodVolumeHealth{{}}
	if bad {
		pod.Status.VolumeHealth[0].HealthConditions = []v1.VolumeHealthCondition{{}}
	}
	return pod
}

func attachmentSeen(attached bool) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Status: storagev1.VolumeAttachmentStatus{Attached: attached}}
}

func TestComplete(t *testing.T) {
	changes := []rig.Change{
		{At: at(10), Old: podSeen(false), New: podSeen(true)}, // an earlier failover
		{At: at(20), Old: attachmentSeen(false), New: attachmentSeen(true)},
		{At: at(110), Old: podSeen(false), New: podSeen(true)},
		{At: at(120), Old: podSeen(true), New: podSeen(true)},
		{At: at(130), Old: podSeen(true)}, // the old pod is gone
		{At: at(140), New: attachmentSeen(false)},
		{At: at(150), Old: attachmentSeen(false), New: attachmentSeen(true)},
		{At: at(160), Old: attachmentSeen(true), New: attachmentSeen(true)},
	}
	for _, tc := range []struct {
		name               string
		changes            []rig.Change
		failed             bool
		abnormal, attached time.Time
		fails              string
	}{
		{name: "a failover", changes: changes, failed: true, abnormal: at(110), attached: at(150)},
		{name: "a drain", changes: changes, attached: at(150)},
		{name: "never attached", changes: changes[:6], failed: true, fails: "attached to"},
		{name: "moved without a failure", changes: append(append([]rig.Change{}, changes[:2]...), changes[5:]...), failed: true, fails: "volume fail"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := []sighting{{pod: "db-0", attachment: "va", begun: at(100)}}
			err := complete(tc.changes, s, tc.failed)
			if tc.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tc.fails) {
					t.Fatalf("error %v, want one with %q", err, tc.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !s[0].abnormal.Equal(tc.abnormal) || !s[0].attached.Equal(tc.attached) {
				t.Errorf("abnormal %v attached %v, want %v and %v", s[0].abnormal, s[0].attached, tc.abnormal, tc.attached)
			}
		})
	}
}
