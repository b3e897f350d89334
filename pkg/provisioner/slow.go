package provisioner

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// slowly are claims that were refused in a way that only a change of the claim or
// its class mends. They are tried again after the longest pause all the same,
// since what a driver accepts may change too.
type slowly struct {
	mu     sync.Mutex
	claims map[types.UID]refusal
}

type refusal struct {
	class types.UID
	spec  v1.PersistentVolumeClaimSpec
	// node is the selected one: for another one the request is another.
	node  string
	until time.Time
}

// add notes a refusal.
func (s *slowly) add(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claims == nil {
		s.claims = map[types.UID]refusal{}
	}
	s.claims[claim.UID] = refusal{class: class.UID, spec: claim.Spec, node: selectedNode(claim), until: until}
}

// waits is for how long the claim is still left alone: it is as it was when it was
// refused.
func (s *slowly) waits(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.claims[claim.UID]
	if !ok {
		return 0
	}
	if now.Before(r.until) && r.class == class.UID && equality.Semantic.DeepEqual(r.spec, claim.Spec) && r.node == selectedNode(claim) {
		return r.until.Sub(now)
	}
	delete(s.claims, claim.UID)
	return 0
}

func (s *slowly) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claims, uid)
}
