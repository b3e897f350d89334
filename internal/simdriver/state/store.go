// Package state is what the processes of the simulated driver share: a directory
// with the volumes, who they are published to, and everything that a test has
// said about paths and health. Each change is atomic on disk and made under a
// lock file for that volume, so that processes may come and go at any point.
//
//	volumes/ID/volume.json   the record of the volume and its publications
//	volumes/ID/data/         its content
//	snapshots/ID/            the same of a snapshot: snapshot.json and data/
//	capacity.json            the limits of capacity; no file: none
//	gates/ID/NODE            the fence, see package gate
//	nodes/NODE.json          registered nodes, with what they have mounted
//	locks/ID                 lock files, never removed
//	ledger.jsonl             every effect, one JSON object a line
package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// Errors that callers tell apart.
var (
	// ErrNotFound: no such volume or node.
	ErrNotFound = errors.New("not found")
	// ErrConflict: the thing exists, with other properties.
	ErrConflict = errors.New("exists already and is not compatible")
	// ErrInUse: a publication stands in the way.
	ErrInUse = errors.New("is published")
	// ErrInvalid: what was asked for makes no sense.
	ErrInvalid = errors.New("invalid")
	// ErrExhausted: there is no room for the volume.
	ErrExhausted = errors.New("the storage is exhausted")
	// ErrRange: a volume of that size cannot be.
	ErrRange = errors.New("the size is out of range")
	// ErrInaccessible: the volume is not accessible from the node's segments.
	ErrInaccessible = errors.New("is not accessible from there")
)

// Config says where the state is.
type Config struct {
	// Dir is made if it does not exist.
	Dir string
	// Clock gives the times in the ledger; nil is the real one.
	Clock clock.PassiveClock
}

// Store is a handle on the state directory. It caches nothing, so that any
// number of them, in any number of processes, see the same.
type Store struct {
	dir   string
	clock clock.PassiveClock
}

// New opens the state directory, and makes it if need be.
func New(cfg Config) (*Store, error) {
	if cfg.Dir == "" {
		return nil, errors.New("the state directory is not set")
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("finding the state directory: %w", err)
	}
	s := &Store{dir: dir, clock: cfg.Clock}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	for _, sub := range []string{"volumes", "snapshots", "gates", "nodes", "locks"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("making the state directory: %w", err)
		}
	}
	return s, nil
}

// Dir is the state directory, absolute.
func (s *Store) Dir() string { return s.dir }

func (s *Store) volumeDir(id string) string  { return filepath.Join(s.dir, "volumes", id) }
func (s *Store) recordPath(id string) string { return filepath.Join(s.volumeDir(id), "volume.json") }

// DataDir is where the content of a volume is.
func (s *Store) DataDir(id string) string { return filepath.Join(s.volumeDir(id), "data") }

// lock takes the lock file of that name, shared by all processes, and returns
// what gives it back.
func (s *Store) lock(ctx context.Context, name string) (func(), error) {
	file, err := os.OpenFile(filepath.Join(s.dir, "locks", name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a lock: %w", err)
	}
	if err := waitLock(ctx, file); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", name, err), file.Close())
	}
	// Closing gives the lock back; nothing was written that could fail.
	return func() { _ = file.Close() }, nil
}

// lockBoth takes the locks of two things, or of one if other is empty or the
// same. Everyone takes two in the same order, so that nobody waits in a circle.
func (s *Store) lockBoth(ctx context.Context, one, other string) (func(), error) {
	if other == "" || other == one {
		return s.lock(ctx, one)
	}
	first, err := s.lock(ctx, min(one, other))
	if err != nil {
		return nil, err
	}
	second, err := s.lock(ctx, max(one, other))
	if err != nil {
		first()
		return nil, err
	}
	return func() { second(); first() }, nil
}

func waitLock(ctx context.Context, file *os.File) error {
	const slowest = 5 * time.Millisecond
	wait := 50 * time.Microsecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		}
		wait = min(2*wait, slowest)
		timer.Reset(wait)
	}
}

// readJSON reads a whole record; ErrNotFound if there is none.
func readJSON(path string, into any) error {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces a record in one step, so that a reader, or a process that
// starts after a crash, sees the old one or the new one.
func writeJSON(path string, from any) error {
	content, err := json.MarshalIndent(from, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", path, err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("writing %s: %w", path, err), os.Remove(file.Name()))
	}
	return nil
}
