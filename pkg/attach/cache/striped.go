package cache

import (
	"hash/maphash"
	"sync"
)

// stripeCount is far more than there are processors, so that two writers
// seldom meet, and few enough for all stripes to be locked within microseconds.
const stripeCount = 64

// striped is a map in stripes, by hash of the key, each under a lock of its own.
type striped[K ~string, V any] struct {
	seed    maphash.Seed
	stripes [stripeCount]stripe[K, V]
}

type stripe[K ~string, V any] struct {
	sync.RWMutex
	m map[K]V
	_ [32]byte // one cache line each
}

func newStriped[K ~string, V any]() *striped[K, V] {
	s := &striped[K, V]{seed: maphash.MakeSeed()}
	for i := range s.stripes {
		s.stripes[i].m = map[K]V{}
	}
	return s
}

// of is the stripe of the key.
func (s *striped[K, V]) of(key K) *stripe[K, V] {
	return &s.stripes[maphash.String(s.seed, string(key))%stripeCount]
}

// get reads one key under the lock of its stripe.
func (s *striped[K, V]) get(key K) (V, bool) {
	t := s.of(key)
	t.RLock()
	defer t.RUnlock()
	v, ok := t.m[key]
	return v, ok
}

// len must be called with all stripes locked.
func (s *striped[K, V]) len() int {
	n := 0
	for i := range s.stripes {
		n += len(s.stripes[i].m)
	}
	return n
}

// all must be called with all stripes locked.
func (s *striped[K, V]) all(yield func(K, V) bool) {
	for i := range s.stripes {
		for k, v := range s.stripes[i].m {
			if !yield(k, v) {
				return
			}
		}
	}
}

func (s *striped[K, V]) lockAll() {
	for i := range s.stripes {
		s.stripes[i].Lock()
	}
}

func (s *striped[K, V]) unlockAll() {
	for i := range s.stripes {
		s.stripes[i].Unlock()
	}
}

func (s *striped[K, V]) rLockAll() {
	for i := range s.stripes {
		s.stripes[i].RLock()
	}
}

func (s *striped[K, V]) rUnlockAll() {
	for i := range s.stripes {
		s.stripes[i].RUnlock()
	}
}
