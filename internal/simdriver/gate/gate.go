// Package gate is the fence of the simulated driver: one small file for each
// pair of a volume and a node, shared by the process that serves the node's
// filesystem and the one that answers ControllerUnpublishVolume.
//
// The file is mapped into memory and holds two words: the generation of the
// publication that may pass (0: none), and whether the path is broken. Every
// filesystem operation holds a shared flock on the file while it runs, and looks
// at the words after it has got it. Whoever shuts the gate first writes the word
// and then takes the lock exclusively. So once Shut has returned, every
// operation that was let in has ended, and no other one will be.
package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// size is that of the file, in bytes: the two words.
const size = 16

// Gate is one side's view of a gate file. The side that serves operations and
// the side that shuts the gate each need their own: a flock belongs to the open
// file, and would not exclude itself.
type Gate struct {
	file    *os.File
	mapping []byte

	// The words, shared with other processes: only to be used atomically.
	admitted *atomic.Uint64
	broken   *atomic.Uint64

	mu      sync.Mutex
	holders int // operations that share the one shared flock of this side
}

// Open opens the gate file at path, and makes it if need be. A new gate is shut.
func Open(path string) (*Gate, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening a gate: %w", err)
	}
	gate, err := mapFile(file)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mapping the gate %s: %w", path, err), file.Close())
	}
	return gate, nil
}

func mapFile(file *os.File) (*Gate, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	// Never shrunk: a shorter file would kill those that have it mapped.
	if info.Size() < size {
		if err := file.Truncate(size); err != nil {
			return nil, err
		}
	}
	mapping, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &Gate{
		file:     file,
		mapping:  mapping,
		admitted: (*atomic.Uint64)(unsafe.Pointer(&mapping[0])),
		broken:   (*atomic.Uint64)(unsafe.Pointer(&mapping[8])),
	}, nil
}

// Close gives the file back. It changes nothing about who may pass.
func (g *Gate) Close() error {
	return errors.Join(unix.Munmap(g.mapping), g.file.Close())
}

// Passable says whether operations of this generation would be let in now.
func (g *Gate) Passable(generation uint64) bool {
	return generation != 0 && g.admitted.Load() == generation && g.broken.Load() == 0
}

// Broken says whether the path is made to fail.
func (g *Gate) Broken() bool { return g.broken.Load() != 0 }

// Enter lets one operation of this generation in, or not. If it says true, Leave
// has to follow when the operation has ended.
func (g *Gate) Enter(generation uint64) bool {
	// Asked before the lock too, so that a crowd of refused operations, which
	// overlap one another, does not keep the lock from whoever shuts the gate.
	if !g.Passable(generation) {
		return false
	}
	if !g.hold() {
		return false
	}
	if !g.Passable(generation) {
		g.Leave()
		return false
	}
	return true
}

// Leave ends an operation that Enter let in.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holders--
	if g.holders == 0 {
		// Unlocking an open file that one has locked cannot fail.
		_ = unix.Flock(int(g.file.Fd()), unix.LOCK_UN)
	}
}

func (g *Gate) hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holders == 0 {
		err := unix.EINTR
		for err == unix.EINTR {
			err = flock(g.file, unix.LOCK_SH)
		}
		if err != 0 {
			return false
		}
	}
	g.holders++
	return true
}

// Admit lets operations of this generation in, and of no other.
func (g *Gate) Admit(generation uint64) { g.admitted.Store(generation) }

// Shut lets nobody in any more, and returns when those inside have left. Its
// error says that somebody may still be inside; the gate is shut all the same.
func (g *Gate) Shut(ctx context.Context) error {
	g.admitted.Store(0)
	return g.drain(ctx)
}

// Break makes the path fail, and returns when those inside have left.
func (g *Gate) Break(ctx context.Context) error {
	g.broken.Store(1)
	return g.drain(ctx)
}

// Mend undoes Break.
func (g *Gate) Mend() { g.broken.Store(0) }

// drain waits until nobody holds the lock. It polls since a blocking flock
// cannot be cancelled, and one operation may hang as long as the disk does.
func (g *Gate) drain(ctx context.Context) error {
	const slowest = 5 * time.Millisecond
	wait := 50 * time.Microsecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		switch err := flock(g.file, unix.LOCK_EX|unix.LOCK_NB); err {
		case 0:
			return unix.Flock(int(g.file.Fd()), unix.LOCK_UN)
		case unix.EWOULDBLOCK, unix.EINTR:
		default:
			return fmt.Errorf("locking the gate: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for operations in flight to end: %w", context.Cause(ctx))
		case <-timer.C:
		}
		wait = min(2*wait, slowest)
		timer.Reset(wait)
	}
}

func flock(file *os.File, how int) unix.Errno {
	err := unix.Flock(int(file.Fd()), how)
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return unix.EIO
	}
	return errno
}
