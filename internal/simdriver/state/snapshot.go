package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Snapshot is the record of one snapshot. It lives on without its volume.
type Snapshot struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Volume is the ID of what it is a snapshot of, Size that one's capacity.
	Volume string    `json:"volume"`
	Size   int64     `json:"size,omitempty"`
	Taken  time.Time `json:"taken"`
}

// Key orders snapshots.
func (s Snapshot) Key() string { return s.ID }

// Source is what a volume is a copy of: one of the two, or neither.
type Source struct {
	Volume   string `json:"volume,omitempty"`
	Snapshot string `json:"snapshot,omitempty"`
}

// String names it.
func (s Source) String() string {
	switch {
	case s.Volume != "":
		return "volume " + s.Volume
	case s.Snapshot != "":
		return "snapshot " + s.Snapshot
	}
	return "no source"
}

// lock names the lock that keeps the source as it is; "" for none.
func (s Source) lock() string {
	switch {
	case validID(s.Volume):
		return s.Volume
	case validSnapshotID(s.Snapshot):
		return s.Snapshot
	}
	return ""
}

func (s *Store) snapshotDir(id string) string { return filepath.Join(s.dir, "snapshots", id) }

func (s *Store) snapshotPath(id string) string {
	return filepath.Join(s.snapshotDir(id), "snapshot.json")
}

func (s *Store) snapshotData(id string) string { return filepath.Join(s.snapshotDir(id), "data") }

// sourceOf gives the size of a source and the directory of its content.
func (s *Store) sourceOf(source Source) (int64, string, error) {
	switch {
	case source.Volume != "":
		volume, err := s.Volume(source.Volume)
		return volume.Capacity, s.DataDir(volume.ID), err
	case source.Snapshot != "":
		snapshot, err := s.Snapshot(source.Snapshot)
		return snapshot.Size, s.snapshotData(snapshot.ID), err
	}
	return 0, "", nil
}

// copyContent copies what is in a directory; from "" it copies nothing.
func copyContent(to, from string) error {
	if from == "" {
		return nil
	}
	return os.CopyFS(to, os.DirFS(from))
}

// CreateSnapshot copies the content of a volume, or finds the copy that this
// name made before. ErrConflict: it is of another volume.
func (s *Store) CreateSnapshot(ctx context.Context, name, volume string) (Snapshot, error) {
	id := SnapshotID(name)
	unlock, err := s.lockBoth(ctx, id, Source{Volume: volume}.lock())
	if err != nil {
		return Snapshot{}, err
	}
	defer unlock()
	snapshot, err := s.Snapshot(id)
	if err == nil {
		if snapshot.Volume != volume {
			return Snapshot{}, fmt.Errorf("snapshot %s of volume %s %w", id, snapshot.Volume, ErrConflict)
		}
		return snapshot, nil
	}
	if !errors.Is(err, ErrNotFound) {
		return Snapshot{}, err
	}
	of, err := s.Volume(volume)
	if err != nil {
		return Snapshot{}, err
	}
	if err := errors.Join(os.RemoveAll(s.snapshotDir(id)), os.MkdirAll(s.snapshotData(id), 0o755)); err != nil {
		return Snapshot{}, fmt.Errorf("making the snapshot: %w", err)
	}
	if err := copyContent(s.snapshotData(id), s.DataDir(volume)); err != nil {
		return Snapshot{}, fmt.Errorf("copying volume %s: %w", volume, err)
	}
	if err := s.record(Entry{Op: OpCreateSnapshot, Volume: volume, Name: name, Snapshot: id}); err != nil {
		return Snapshot{}, err
	}
	snapshot = Snapshot{ID: id, Name: name, Volume: volume, Size: of.Capacity, Taken: s.clock.Now()}
	if err := writeJSON(s.snapshotPath(id), snapshot); err != nil {
		return Snapshot{}, fmt.Errorf("saving snapshot %s: %w", id, err)
	}
	return snapshot, nil
}

// DeleteSnapshot removes it. One that does not exist is no error.
func (s *Store) DeleteSnapshot(ctx context.Context, id string) error {
	if !validSnapshotID(id) {
		return nil
	}
	unlock, err := s.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	snapshot, err := s.Snapshot(id)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(os.Remove(s.snapshotPath(id)), os.RemoveAll(s.snapshotDir(id))); err != nil {
		return err
	}
	return s.record(Entry{Op: OpDeleteSnapshot, Volume: snapshot.Volume, Name: snapshot.Name, Snapshot: id})
}

// Snapshot reads one record; ErrNotFound if there is none.
func (s *Store) Snapshot(id string) (Snapshot, error) {
	if !validSnapshotID(id) {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", id, ErrNotFound)
	}
	var snapshot Snapshot
	if err := readJSON(s.snapshotPath(id), &snapshot); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot %q: %w", id, err)
	}
	return snapshot, nil
}

// Snapshots reads all records, ordered by ID.
func (s *Store) Snapshots() ([]Snapshot, error) {
	entries, err := os.ReadDir(filepath.Join(s.dir, "snapshots"))
	if err != nil {
		return nil, fmt.Errorf("listing snapshots: %w", err)
	}
	snapshots := make([]Snapshot, 0, len(entries))
	for _, entry := range entries {
		snapshot, err := s.Snapshot(entry.Name())
		if errors.Is(err, ErrNotFound) {
			continue // being made or being deleted
		}
		if err != nil {
			return nil, err
		}
		snapshots = append(snapshots, snapshot)
	}
	slices.SortFunc(snapshots, func(a, b Snapshot) int { return strings.Compare(a.ID, b.ID) })
	return snapshots, nil
}
