// Package fusefs is the filesystem that a node of the simulated driver gives to
// pods: the volume's directory, behind a gate that each operation passes. It
// keeps no data in the page cache (direct I/O), no attributes and no names, so
// that nothing waits in the kernel to be written after a fence. Shared writable
// memory maps are therefore refused, as by every direct I/O filesystem.
package fusefs

import (
	"errors"
	"fmt"
	"io"
	"log"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/gate"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
)

// FSType is how the mount table calls the filesystem.
const FSType = "fuse.simdriver"

// Config of one mount.
type Config struct {
	// Dir holds the content, MountPoint is where it is shown; both exist.
	Dir, MountPoint string
	// Source is what the mount table shows as the source.
	Source string
	// Gate is asked for every operation, with Generation. Mount takes it over
	// and closes it when the filesystem has ended.
	Gate       *gate.Gate
	Generation uint64
	ReadOnly   bool
	Logger     logr.Logger
}

// Mount is a mounted filesystem.
type Mount struct {
	path string
	done chan struct{}
}

// New mounts it. The caller needs CAP_SYS_ADMIN and /dev/fuse.
func New(cfg Config) (*Mount, error) {
	if cfg.Gate == nil || cfg.Dir == "" || cfg.MountPoint == "" {
		return nil, errors.New("a mount needs a directory, a mount point and a gate")
	}
	var never time.Duration
	server, err := fs.Mount(cfg.MountPoint, &node{volume: &volume{
		dir: cfg.Dir, gate: cfg.Gate, generation: cfg.Generation, readOnly: cfg.ReadOnly,
	}}, &fs.Options{
		EntryTimeout: &never, AttrTimeout: &never, NegativeTimeout: &never,
		NullPermissions: true,
		MountOptions: fuse.MountOptions{
			AllowOther:        true,
			Options:           []string{"default_permissions"},
			FsName:            cfg.Source,
			Name:              "simdriver",
			DirectMountStrict: true,
			DisableXAttrs:     true,
			// The kernel must not write to the directory by itself.
			DisabledCapabilities: fuse.CAP_PASSTHROUGH | fuse.CAP_WRITEBACK_CACHE,
			Logger:               log.New(io.Discard, "", 0),
			PanicHandler: func(recovered any) fuse.Status {
				cfg.Logger.Error(nil, "Filesystem operation panicked", "mountPoint", cfg.MountPoint, "panic", recovered)
				return fuse.EIO
			},
		},
	})
	if err != nil {
		// It may have got as far as the mount table.
		return nil, errors.Join(fmt.Errorf("mounting FUSE at %s: %w", cfg.MountPoint, err),
			mounts.Abort(cfg.MountPoint), cfg.Gate.Close())
	}
	m := &Mount{path: cfg.MountPoint, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		server.Wait()
		if err := cfg.Gate.Close(); err != nil {
			cfg.Logger.Error(err, "Closing the gate failed", "mountPoint", cfg.MountPoint)
		}
	}()
	return m, nil
}

// Done is closed when nobody can use the filesystem any more: it is unmounted
// everywhere and no file on it is open, or it was aborted.
func (m *Mount) Done() <-chan struct{} { return m.done }

// Alive says whether the filesystem still serves.
func (m *Mount) Alive() bool {
	select {
	case <-m.done:
		return false
	default:
		return true
	}
}

// volume is what all nodes of one mount share.
type volume struct {
	dir        string
	gate       *gate.Gate
	generation uint64
	readOnly   bool
}

// read runs an operation that changes nothing, if the gate lets it in.
func (v *volume) read(operation func() error) syscall.Errno {
	if !v.gate.Enter(v.generation) {
		return syscall.EIO
	}
	defer v.gate.Leave()
	return fs.ToErrno(operation())
}

// write runs an operation that changes something, if the gate lets it in.
func (v *volume) write(operation func() error) syscall.Errno {
	if v.readOnly {
		return syscall.EROFS
	}
	return v.read(operation)
}
