package fusefs

import (
	"context"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The operations that change the tree.

func (n *node) Setattr(_ context.Context, file fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return n.volume.write(func() error {
		if err := n.change(file, in); err != nil {
			return err
		}
		return n.attributes(file, out)
	})
}

func (n *node) change(file fs.FileHandle, in *fuse.SetAttrIn) error {
	path := n.path()
	if mode, ok := in.GetMode(); ok {
		if err := syscall.Chmod(path, mode); err != nil {
			return err
		}
	}
	uid, gid := -1, -1
	if id, ok := in.GetUID(); ok {
		uid = int(id)
	}
	if id, ok := in.GetGID(); ok {
		gid = int(id)
	}
	if uid >= 0 || gid >= 0 {
		if err := syscall.Lchown(path, uid, gid); err != nil {
			return err
		}
	}
	if size, ok := in.GetSize(); ok {
		if err := truncate(path, file, int64(size)); err != nil {
			return err
		}
	}
	return setTimes(path, in)
}

func truncate(path string, file fs.FileHandle, size int64) error {
	if h, ok := file.(*handle); ok {
		return syscall.Ftruncate(h.fd, size)
	}
	return syscall.Truncate(path, size)
}

func setTimes(path string, in *fuse.SetAttrIn) error {
	times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	atime, changesAtime := in.GetATime()
	mtime, changesMtime := in.GetMTime()
	if !changesAtime && !changesMtime {
		return nil
	}
	if changesAtime {
		times[0] = unix.NsecToTimespec(atime.UnixNano())
	}
	if changesMtime {
		times[1] = unix.NsecToTimespec(mtime.UnixNano())
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, times[:], unix.AT_SYMLINK_NOFOLLOW)
}

// add makes a name below n and gives its inode.
func (n *node) add(ctx context.Context, name string, out *fuse.EntryOut, create func(path string) error) (
	inode *fs.Inode, _ syscall.Errno,
) {
	errno := n.volume.write(func() error {
		if err := create(n.child(name)); err != nil {
			return err
		}
		if err := own(ctx, n.child(name)); err != nil {
			return err
		}
		var err error
		inode, err = n.enter(ctx, name, out)
		return err
	})
	return inode, errno
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.add(ctx, name, out, func(path string) error { return syscall.Mkdir(path, mode) })
}

func (n *node) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	return n.add(ctx, name, out, func(path string) error { return syscall.Symlink(target, path) })
}

// Mknod makes pipes and sockets; devices make no sense on a nodev mount.
func (n *node) Mknod(ctx context.Context, name string, mode, _ uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if kind := mode & syscall.S_IFMT; kind == syscall.S_IFBLK || kind == syscall.S_IFCHR {
		return nil, syscall.EPERM
	}
	return n.add(ctx, name, out, func(path string) error { return syscall.Mknod(path, mode, 0) })
}

func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (
	inode *fs.Inode, _ syscall.Errno,
) {
	from, ok := target.(*node)
	if !ok {
		return nil, syscall.EXDEV
	}
	errno := n.volume.write(func() (err error) {
		if err := syscall.Link(from.path(), n.child(name)); err != nil {
			return err
		}
		inode, err = n.enter(ctx, name, out)
		return err
	})
	return inode, errno
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno {
	return n.volume.write(func() error { return syscall.Unlink(n.child(name)) })
}

func (n *node) Rmdir(_ context.Context, name string) syscall.Errno {
	return n.volume.write(func() error { return syscall.Rmdir(n.child(name)) })
}

func (n *node) Rename(_ context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	to, ok := parent.(*node)
	if !ok {
		return syscall.EXDEV
	}
	return n.volume.write(func() error {
		return unix.Renameat2(unix.AT_FDCWD, n.child(name), unix.AT_FDCWD, to.child(newName), uint(flags))
	})
}
