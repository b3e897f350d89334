package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
)

// Spec is a volume that is asked for.
type Spec struct {
	Name        string
	Size        Range
	Requirement Requirement
	Parameters  map[string]string
	// Mutable are parameters that may change later.
	Mutable map[string]string
	// Source is what the content is copied from.
	Source Source
}

// CreateVolume makes an empty volume of that name, accessible from everywhere,
// or finds it: see Create.
func (s *Store) CreateVolume(ctx context.Context, name string, size Range) (Volume, error) {
	return s.Create(ctx, Spec{Name: name, Size: size})
}

// Create makes the volume of that name, or finds it. ErrConflict: it exists and
// is not what is asked for; ErrNotFound: its source does not exist; ErrRange and
// ErrExhausted: it would be smaller than its source or too large, or there is
// no room.
func (s *Store) Create(ctx context.Context, spec Spec) (Volume, error) {
	id := VolumeID(spec.Name)
	unlock, err := s.lockBoth(ctx, id, spec.Source.lock())
	if err != nil {
		return Volume{}, err
	}
	defer unlock()
	volume, err := s.Volume(id)
	if err == nil {
		return volume, spec.conflict(volume)
	}
	if !errors.Is(err, ErrNotFound) {
		return Volume{}, err
	}
	size, content, err := s.sized(spec)
	if err != nil {
		return Volume{}, err
	}
	if err := s.fill(id, content); err != nil {
		return Volume{}, err
	}
	return s.enter(ctx, Volume{ID: id, Name: spec.Name, Capacity: size,
		Parameters: spec.Parameters, Mutable: maps.Clone(spec.Mutable), Source: spec.Source}, spec.Requirement.Terms())
}

// conflict says why an existing volume is not the one that is asked for. What
// may be modified is no reason.
func (spec Spec) conflict(volume Volume) error {
	switch {
	case !spec.Size.admits(volume.Capacity):
		return fmt.Errorf("volume %s of %d bytes %w", volume.ID, volume.Capacity, ErrConflict)
	case !spec.Requirement.Admits(volume.Topology):
		return fmt.Errorf("volume %s at %s %w", volume.ID, volume.Topology, ErrConflict)
	case spec.Source != volume.Source:
		return fmt.Errorf("volume %s from %s %w", volume.ID, volume.Source, ErrConflict)
	case !maps.Equal(spec.Parameters, volume.Parameters):
		return fmt.Errorf("volume %s with other parameters %w", volume.ID, ErrConflict)
	}
	return nil
}

// sized is how large the volume becomes, and the directory that its content
// comes from, "" for none.
func (s *Store) sized(spec Spec) (int64, string, error) {
	least, content, err := s.sourceOf(spec.Source)
	if err != nil {
		return 0, "", err
	}
	if spec.Size.Required > 0 && spec.Size.Required < least || spec.Size.Limit > 0 && spec.Size.Limit < least {
		return 0, "", fmt.Errorf("%s has %d bytes, more than the volume that is asked for: %w", spec.Source, least, ErrRange)
	}
	return max(spec.Size.Required, least), content, nil
}

// fill makes the directory of a volume. Whatever an earlier attempt left there
// goes.
func (s *Store) fill(id, content string) error {
	dir := s.DataDir(id)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clearing the volume: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the volume: %w", err)
	}
	if err := copyContent(dir, content); err != nil {
		return fmt.Errorf("filling the volume: %w", err)
	}
	// Whoever runs in the pod may write; MkdirAll would apply the umask.
	if err := os.Chmod(dir, 0o777); err != nil {
		return fmt.Errorf("opening the volume to its users: %w", err)
	}
	return nil
}

// enter finds a place for a new volume and writes its record, which comes last:
// without it there is no volume.
func (s *Store) enter(ctx context.Context, volume Volume, terms []Segments) (Volume, error) {
	limits, err := s.Limits()
	if err != nil {
		return Volume{}, err
	}
	var volumes []Volume
	if len(limits) > 0 {
		unlock, err := s.lock(ctx, capacityLock)
		if err != nil {
			return Volume{}, err
		}
		defer unlock()
		if limits, err = s.Limits(); err != nil {
			return Volume{}, err
		}
		if volumes, err = s.Volumes(); err != nil {
			return Volume{}, err
		}
	}
	volume.Topology, err = place(terms, volume.Capacity, func(at Segments) Room { return roomAt(at, limits, volumes) })
	if err != nil {
		return Volume{}, errors.Join(err, os.RemoveAll(s.volumeDir(volume.ID)))
	}
	if err := s.record(Entry{Op: OpCreate, Volume: volume.ID, Name: volume.Name}); err != nil {
		return Volume{}, err
	}
	return volume, s.save(volume)
}
