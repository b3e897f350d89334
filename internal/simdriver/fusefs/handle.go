package fusefs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// handle is an open file. It offers no PassthroughFd: the kernel would then
// write to the directory without asking the gate.
type handle struct {
	volume *volume
	fd     int
}

// openHandle keeps O_APPEND: the end of a file that another node also writes is
// known only to the directory.
func openHandle(v *volume, path string, flags, mode uint32) (*handle, error) {
	fd, err := unix.Open(path, int(flags)|unix.O_CLOEXEC|unix.O_NOFOLLOW, mode)
	if err != nil {
		return nil, err
	}
	return &handle{volume: v, fd: fd}, nil
}

func (h *handle) Read(_ context.Context, buffer []byte, offset int64) (fuse.ReadResult, syscall.Errno) {
	length := 0
	errno := h.volume.read(func() (err error) {
		length, err = unix.Pread(h.fd, buffer, offset)
		return err
	})
	return fuse.ReadResultData(buffer[:max(length, 0)]), errno
}

func (h *handle) Write(_ context.Context, data []byte, offset int64) (uint32, syscall.Errno) {
	length := 0
	errno := h.volume.write(func() (err error) {
		length, err = unix.Pwrite(h.fd, data, offset)
		return err
	})
	return uint32(max(length, 0)), errno
}

func (h *handle) sync(flags uint32) error {
	const dataOnly = 1 // FUSE_FSYNC_FDATASYNC
	if flags&dataOnly != 0 {
		return unix.Fdatasync(h.fd)
	}
	return unix.Fsync(h.fd)
}

// Flush is the close of one descriptor of the file.
func (h *handle) Flush(context.Context) syscall.Errno {
	return h.volume.read(func() error { return nil })
}

func (h *handle) Lseek(_ context.Context, offset uint64, whence uint32) (position uint64, _ syscall.Errno) {
	errno := h.volume.read(func() error {
		found, err := unix.Seek(h.fd, int64(offset), int(whence))
		position = uint64(found)
		return err
	})
	return position, errno
}

func (h *handle) Allocate(_ context.Context, offset, size uint64, mode uint32) syscall.Errno {
	return h.volume.write(func() error {
		return unix.Fallocate(h.fd, mode, int64(offset), int64(size))
	})
}

// Release gives the descriptor back. It is the one operation that passes
// without the gate: it reaches no data.
func (h *handle) Release(context.Context) syscall.Errno { return fs.ToErrno(unix.Close(h.fd)) }
