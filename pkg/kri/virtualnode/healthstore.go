package virtualnode

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// healthStore keeps Pod.status.volumeHealth of every pod. It follows the
// kubelet: only a change of the set of (status, reason) counts, a volume that was
// never unhealthy has no entry, and one that recovered keeps an empty one.
type healthStore struct {
	clock clock.PassiveClock

	mu   sync.Mutex
	pods map[types.UID][]v1.PodVolumeHealth
}

func newHealthStore(c clock.PassiveClock) *healthStore {
	return &healthStore{clock: c, pods: map[types.UID][]v1.PodVolumeHealth{}}
}

// seed takes over what the API has of a pod, unless the pod is known.
func (s *healthStore) seed(uid types.UID, health []v1.PodVolumeHealth) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.pods[uid]; !ok {
		s.pods[uid] = slices.Clone(health)
	}
}

func (s *healthStore) get(uid types.UID) ([]v1.PodVolumeHealth, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	health, ok := s.pods[uid]
	return slices.Clone(health), ok
}

func (s *healthStore) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
}

// set enters an answer and reports whether that changed anything.
func (s *healthStore) set(uid types.UID, volume string, conditions []v1.VolumeHealthCondition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	health, ok := s.pods[uid]
	if !ok {
		return false // The pod is gone, or not synced yet.
	}
	i := slices.IndexFunc(health, func(h v1.PodVolumeHealth) bool { return h.Name == volume })
	var old []v1.VolumeHealthCondition
	if i >= 0 {
		old = health[i].HealthConditions
	}
	if sameConditions(old, conditions) {
		return false
	}
	entry := v1.PodVolumeHealth{Name: volume, HealthConditions: conditions, LastTransitionTime: metav1.NewTime(s.clock.Now())}
	health = slices.Clone(health)
	if i >= 0 {
		health[i] = entry
	} else {
		health = append(health, entry)
	}
	s.pods[uid] = health
	return true
}

// sameConditions compares sets of (status, reason).
func sameConditions(a, b []v1.VolumeHealthCondition) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.ContainsFunc(b, func(y v1.VolumeHealthCondition) bool { return x.Status == y.Status && x.Reason == y.Reason }) {
			return false
		}
	}
	return true
}
