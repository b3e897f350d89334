package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// Limit is how much storage there is within some segments. Without segments it
// is what each segment has that no other limit speaks of.
type Limit struct {
	Segments Segments `json:"segments,omitempty"`
	// Bytes are shared by all volumes within the segments; nil is no limit.
	Bytes *int64 `json:"bytes,omitempty"`
	// MaximumVolumeSize bounds each of them, and is positive; nil is no bound.
	MaximumVolumeSize *int64 `json:"maximumVolumeSize,omitempty"`
}

// Room is what can still be made somewhere, in bytes.
type Room struct {
	Available int64
	// MaximumVolumeSize is 0 where there is no bound.
	MaximumVolumeSize int64
}

// capacityLock is taken after a volume's lock, never before.
const capacityLock = "capacity"

func (s *Store) limitsPath() string { return filepath.Join(s.dir, "capacity.json") }

// Limits are all that stand.
func (s *Store) Limits() ([]Limit, error) {
	var limits []Limit
	if err := readJSON(s.limitsPath(), &limits); err != nil && !errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("reading the limits of capacity: %w", err)
	}
	return limits, nil
}

// SetLimit replaces the limit of the same segments; one that limits nothing
// takes it away. Volumes that exist stay, whatever they take.
func (s *Store) SetLimit(ctx context.Context, limit Limit) error {
	if n := limit.Bytes; n != nil && *n < 0 {
		return fmt.Errorf("%w capacity: %d bytes", ErrInvalid, *n)
	}
	if n := limit.MaximumVolumeSize; n != nil && *n <= 0 {
		return fmt.Errorf("%w size of the largest volume: %d bytes", ErrInvalid, *n)
	}
	unlock, err := s.lock(ctx, capacityLock)
	if err != nil {
		return err
	}
	defer unlock()
	limits, err := s.Limits()
	if err != nil {
		return err
	}
	limits = slices.DeleteFunc(limits, func(l Limit) bool { return maps.Equal(l.Segments, limit.Segments) })
	if limit.Bytes != nil || limit.MaximumVolumeSize != nil {
		limits = append(limits, limit)
	}
	if len(limits) == 0 {
		if err := os.Remove(s.limitsPath()); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := writeJSON(s.limitsPath(), limits); err != nil {
		return fmt.Errorf("saving the limits of capacity: %w", err)
	}
	return nil
}

// roomAt is what these limits leave at a segment, beside these volumes.
func roomAt(at Segments, limits []Limit, volumes []Volume) Room {
	room := Room{Available: math.MaxInt64}
	governed := false
	apply := func(l Limit, counts func(Segments) bool) {
		if l.Bytes != nil {
			left := *l.Bytes
			for _, volume := range volumes {
				if counts(volume.Topology) {
					left -= volume.Capacity
				}
			}
			room.Available = min(room.Available, max(0, left))
		}
		if m := l.MaximumVolumeSize; m != nil && (room.MaximumVolumeSize == 0 || *m < room.MaximumVolumeSize) {
			room.MaximumVolumeSize = *m
		}
	}
	for _, l := range limits {
		if len(l.Segments) > 0 && at.Within(l.Segments) {
			governed = true
			apply(l, func(where Segments) bool { return where.Within(l.Segments) })
		}
	}
	for _, l := range limits {
		if len(l.Segments) == 0 && !governed {
			apply(l, func(where Segments) bool { return maps.Equal(where, at) })
		}
	}
	return room
}

// fits says whether a volume of that many bytes can be made.
func (r Room) fits(bytes int64) bool { return bytes <= r.Available && !r.tooLarge(bytes) }

func (r Room) tooLarge(bytes int64) bool {
	return r.MaximumVolumeSize > 0 && bytes > r.MaximumVolumeSize
}

// RoomAt is what can still be made at these segments; without any, in all
// segments where a node is.
func (s *Store) RoomAt(at Segments) (Room, error) {
	limits, err := s.Limits()
	if err != nil {
		return Room{}, err
	}
	volumes, err := s.Volumes()
	if err != nil {
		return Room{}, err
	}
	if len(at) > 0 {
		return roomAt(at, limits, volumes), nil
	}
	segments, err := s.segments()
	if err != nil {
		return Room{}, err
	}
	if len(segments) == 0 {
		return roomAt(nil, limits, volumes), nil
	}
	var all Room
	for _, segment := range segments {
		room := roomAt(segment, limits, volumes)
		// Saturates: a segment without a limit has all there is.
		all.Available += min(room.Available, math.MaxInt64-all.Available)
		all.MaximumVolumeSize = max(all.MaximumVolumeSize, room.MaximumVolumeSize)
	}
	return all, nil
}

// segments are the distinct ones of the nodes.
func (s *Store) segments() ([]Segments, error) {
	nodes, err := s.Nodes()
	if err != nil {
		return nil, err
	}
	var all []Segments
	for _, node := range nodes {
		known := slices.ContainsFunc(all, func(t Segments) bool { return maps.Equal(t, node.Topology) })
		if len(node.Topology) > 0 && !known {
			all = append(all, node.Topology)
		}
	}
	return all, nil
}

// place chooses where a new volume goes. ErrExhausted: no term has room;
// ErrRange: none allows one so large.
func place(terms []Segments, bytes int64, room func(Segments) Room) (Segments, error) {
	if len(terms) == 0 {
		terms = []Segments{nil}
	}
	tooLarge := true
	for _, term := range terms {
		there := room(term)
		if there.fits(bytes) {
			return term, nil
		}
		tooLarge = tooLarge && there.tooLarge(bytes)
	}
	if tooLarge {
		return nil, fmt.Errorf("%d bytes are more than one volume may have: %w", bytes, ErrRange)
	}
	return nil, fmt.Errorf("no room for %d bytes in %v: %w", bytes, terms, ErrExhausted)
}
