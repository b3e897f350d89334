package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Volume is the record of one volume.
type Volume struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Capacity in bytes; 0 if nobody asked for one. It is remembered, not enforced.
	Capacity int64 `json:"capacity,omitempty"`
	// Topology is where it is accessible from; nil is everywhere.
	Topology Segments `json:"topology,omitempty"`
	// Parameters are those of CreateVolume. Mutable are its mutable_parameters
	// and those that ControllerModifyVolume changed since.
	Parameters map[string]string `json:"parameters,omitempty"`
	Mutable    map[string]string `json:"mutableParameters,omitempty"`
	// Source is what it is a copy of.
	Source Source `json:"source,omitzero"`
	// Generation counts publications to any node. It is never used twice, so that
	// what was mounted under an earlier publication stays dead.
	Generation uint64 `json:"generation"`
	// Publications by node ID.
	Publications map[string]Publication `json:"publications,omitempty"`
	// Conditions that were set for the controller's side ("") and by node ID.
	Conditions map[string][]Condition `json:"conditions,omitempty"`
}

// Key orders volumes.
func (v Volume) Key() string { return v.ID }

// Range is what CreateVolume asks for, in bytes; 0 is no bound.
type Range struct{ Required, Limit int64 }

func (r Range) admits(capacity int64) bool {
	return capacity >= r.Required && (r.Limit == 0 || capacity <= r.Limit)
}

// DeleteVolume removes a volume and its content. One that does not exist is no
// error; ErrInUse: it is published.
func (s *Store) DeleteVolume(ctx context.Context, id string) error {
	if !validID(id) {
		return nil
	}
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	volume, err := s.Volume(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(volume.Publications) > 0 {
		return fmt.Errorf("volume %s %w to %s", id, ErrInUse, strings.Join(volume.Nodes(), ", "))
	}
	if err := errors.Join(
		os.Remove(s.recordPath(id)),
		os.RemoveAll(s.volumeDir(id)),
		os.RemoveAll(filepath.Join(s.dir, "gates", id)),
	); err != nil {
		return err
	}
	return s.record(Entry{Op: OpDelete, Volume: id, Name: volume.Name})
}

// ModifyVolume sets mutable parameters; those that are not named stay.
func (s *Store) ModifyVolume(ctx context.Context, id string, parameters map[string]string) error {
	return s.update(ctx, id, func(volume *Volume) error {
		if volume.Mutable == nil {
			volume.Mutable = map[string]string{}
		}
		maps.Copy(volume.Mutable, parameters)
		return nil
	})
}

// Volume reads one record; ErrNotFound if there is none.
func (s *Store) Volume(id string) (Volume, error) {
	if !validID(id) {
		return Volume{}, fmt.Errorf("volume %q: %w", id, ErrNotFound)
	}
	var volume Volume
	if err := readJSON(s.recordPath(id), &volume); err != nil {
		return Volume{}, fmt.Errorf("volume %q: %w", id, err)
	}
	return volume, nil
}

// Volumes reads all records, ordered by ID.
func (s *Store) Volumes() ([]Volume, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "volumes"))
	if err != nil {
		return nil, fmt.Errorf("listing volumes: %w", err)
	}
	volumes := make([]Volume, 0, len(entries))
	for _, entry := range entries {
		volume, err := s.Volume(entry.Name())
		if errors.Is(err, ErrNotFound) {
			continue // being made or being deleted
		}
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, volume)
	}
	slices.SortFunc(volumes, func(a, b Volume) int { return strings.Compare(a.ID, b.ID) })
	return volumes, nil
}

// update changes one record under its lock.
func (s *Store) update(ctx context.Context, id string, change func(*Volume) error) error {
	if !validID(id) {
		return fmt.Errorf("volume %q: %w", id, ErrNotFound)
	}
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	volume, err := s.Volume(id)
	if err != nil {
		return err
	}
	if err := change(&volume); err != nil {
		return err
	}
	return s.save(volume)
}

func (s *Store) save(volume Volume) error {
	if err := writeJSON(s.recordPath(volume.ID), volume); err != nil {
		return fmt.Errorf("saving volume %s: %w", volume.ID, err)
	}
	return nil
}
