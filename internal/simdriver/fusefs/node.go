package fusefs

import (
	"context"
	"path/filepath"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file, directory or symbolic link. It holds nothing but its place in
// the tree. It embeds no ready-made node on purpose: every operation there is
// must be written out here, and pass the gate.
type node struct {
	fs.Inode
	volume *volume
}

func (n *node) path() string             { return filepath.Join(n.volume.dir, n.Path(n.Root())) }
func (n *node) child(name string) string { return filepath.Join(n.path(), name) }

// enter looks at a name below n and gives its inode.
func (n *node) enter(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(n.child(name), &st); err != nil {
		return nil, err
	}
	out.FromStat(&st)
	return n.NewInode(ctx, &node{volume: n.volume}, fs.StableAttr{Mode: st.Mode, Ino: st.Ino}), nil
}

// own gives a new file to whoever asked for it.
func own(ctx context.Context, path string) error {
	caller, ok := fuse.FromContext(ctx)
	if !ok {
		return nil
	}
	return syscall.Lchown(path, int(caller.Uid), int(caller.Gid))
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (inode *fs.Inode, _ syscall.Errno) {
	errno := n.volume.read(func() (err error) {
		inode, err = n.enter(ctx, name, out)
		return err
	})
	return inode, errno
}

func (n *node) Getattr(_ context.Context, file fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	return n.volume.read(func() error { return n.attributes(file, out) })
}

// attributes asks the open file if there is one: it may have lost its name.
func (n *node) attributes(file fs.FileHandle, out *fuse.AttrOut) error {
	var st syscall.Stat_t
	if h, ok := file.(*handle); ok {
		if err := syscall.Fstat(h.fd, &st); err != nil {
			return err
		}
	} else if err := syscall.Lstat(n.path(), &st); err != nil {
		return err
	}
	out.FromStat(&st)
	return nil
}

func (n *node) Readlink(context.Context) (target []byte, _ syscall.Errno) {
	errno := n.volume.read(func() error {
		buffer := make([]byte, unix.PathMax)
		length, err := unix.Readlink(n.path(), buffer)
		target = buffer[:max(length, 0)]
		return err
	})
	return target, errno
}

func (n *node) Readdir(context.Context) (stream fs.DirStream, _ syscall.Errno) {
	errno := n.volume.read(func() error {
		loaded, errno := list(n.path())
		if errno != 0 {
			return errno
		}
		stream = fs.NewListDirStream(loaded)
		return nil
	})
	return stream, errno
}

// list reads a directory as a whole, so that none of it is read after the gate.
func list(path string) ([]fuse.DirEntry, syscall.Errno) {
	stream, errno := fs.NewLoopbackDirStream(path)
	if errno != 0 {
		return nil, errno
	}
	defer stream.Close()
	var entries []fuse.DirEntry
	for stream.HasNext() {
		entry, errno := stream.Next()
		if errno != 0 {
			return nil, errno
		}
		if entry.Name != "." && entry.Name != ".." {
			entry.Off = 0
			entries = append(entries, entry)
		}
	}
	return entries, 0
}

func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	return n.volume.read(func() error {
		var st syscall.Statfs_t
		if err := syscall.Statfs(n.volume.dir, &st); err != nil {
			return err
		}
		out.FromStatfsT(&st)
		return nil
	})
}

// Fsync syncs the open file, or the directory.
func (n *node) Fsync(_ context.Context, file fs.FileHandle, flags uint32) syscall.Errno {
	return n.volume.read(func() error {
		if h, ok := file.(*handle); ok {
			return h.sync(flags)
		}
		fd, err := unix.Open(n.path(), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Fsync(fd)
	})
}

// Open gives direct I/O to every file: the kernel caches nothing of it.
func (n *node) Open(_ context.Context, flags uint32) (file fs.FileHandle, _ uint32, _ syscall.Errno) {
	do := n.volume.read
	if flags&(unix.O_WRONLY|unix.O_RDWR|unix.O_TRUNC) != 0 {
		do = n.volume.write
	}
	errno := do(func() (err error) {
		file, err = openHandle(n.volume, n.path(), flags&^(unix.O_CREAT|unix.O_EXCL), 0)
		return err
	})
	return file, fuse.FOPEN_DIRECT_IO, errno
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (
	inode *fs.Inode, file fs.FileHandle, _ uint32, _ syscall.Errno,
) {
	errno := n.volume.write(func() error {
		opened, err := openHandle(n.volume, n.child(name), flags|unix.O_CREAT, mode)
		if err != nil {
			return err
		}
		err = own(ctx, n.child(name))
		if err == nil {
			inode, err = n.enter(ctx, name, out)
		}
		if err != nil {
			_ = unix.Close(opened.fd) // nothing was written
			return err
		}
		file = opened
		return nil
	})
	return inode, file, fuse.FOPEN_DIRECT_IO, errno
}
