package virtualnode

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

func TestHealthStore(t *testing.T) {
	clock := testingclock.NewFakePassiveClock(t0)
	s := newHealthStore(clock)
	down := v1.VolumeHealthCondition{Status: v1.VolumeHealthInaccessible, Reason: "PathDown", Message: "first"}
	slow := v1.VolumeHealthCondition{Status: v1.VolumeHealthDegraded, Reason: "Slow"}
	if s.set("u", "v", []v1.VolumeHealthCondition{down}) {
		t.Error("a pod that is not known changed")
	}
	s.seed("u", nil)
	if s.set("u", "v", nil) {
		t.Error("a volume that was never unhealthy has become healthy")
	}
	if !s.set("u", "v", []v1.VolumeHealthCondition{down}) {
		t.Error("no change by the first condition")
	}
	clock.SetTime(t0.Add(time.Minute))
	otherWords := down
	otherWords.Message = "second"
	if s.set("u", "v", []v1.VolumeHealthCondition{otherWords}) {
		t.Error("a message alone counts as a change")
	}
	if !s.set("u", "v", []v1.VolumeHealthCondition{slow, down}) || s.set("u", "v", []v1.VolumeHealthCondition{down, slow}) {
		t.Error("the set does not decide")
	}
	clock.SetTime(t0.Add(time.Hour))
	if !s.set("u", "v", nil) {
		t.Error("no change by the recovery")
	}
	got, _ := s.get("u")
	want := []v1.PodVolumeHealth{{Name: "v", LastTransitionTime: metav1.NewTime(t0.Add(time.Hour))}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	s.seed("u", []v1.PodVolumeHealth{{Name: "x"}}) // Known already.
	if got, _ := s.get("u"); len(got) != 1 || got[0].Name != "v" {
		t.Errorf("seeded over: %v", got)
	}
	s.forget("u")
	if _, ok := s.get("u"); ok {
		t.Error("not forgotten")
	}
}

// TestHealthStoreAfterRestart: the agent starts from what the API has.
func TestHealthStoreAfterRestart(t *testing.T) {
	down := []v1.VolumeHealthCondition{{Status: v1.VolumeHealthInaccessible, Reason: "PathDown"}}
	s := newHealthStore(testingclock.NewFakePassiveClock(t0))
	s.seed("u", []v1.PodVolumeHealth{{Name: "v", HealthConditions: down}})
	if s.set("u", "v", down) {
		t.Error("what the API has was taken for news")
	}
	if !s.set("u", "v", nil) {
		t.Error("the recovery was missed")
	}
}

func TestStorageTransitions(t *testing.T) {
	now, later := metav1.NewTime(t0), metav1.NewTime(t0.Add(time.Hour))
	block := ptr.To(v1.PersistentVolumeBlock)
	a := storagev1.StorageHealthCondition{Status: storagev1.StorageDegraded, Reason: "A"}
	b := storagev1.StorageHealthCondition{Status: storagev1.StorageDegraded, Reason: "A", VolumeMode: block}
	first := keepTransitions(nil, []storagev1.StorageHealthCondition{a}, now)
	second := keepTransitions(first, []storagev1.StorageHealthCondition{b, a}, later)
	if !second[0].LastTransitionTime.Equal(&later) || !second[1].LastTransitionTime.Equal(&now) {
		t.Errorf("transitions: %v", second)
	}
	if sameStorage(first, second) || !sameStorage(second, second) || !sameStorage(nil, nil) {
		t.Error("sameStorage does not compare")
	}
}
