// Package mounts reads and changes the mount table for the node service. It
// looks at the table and not at the files, since these may fail or hang.
package mounts

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Info is one mount.
type Info struct {
	Path   string
	FSType string
	// Source of a filesystem of ours tells which volume and publication it is.
	Source string
	// Root is the directory within the filesystem that is mounted here.
	Root string
}

// Identity is the same for a mount and for its bind mounts, and for no other.
func (i Info) Identity() string { return i.FSType + " " + i.Source + " " + i.Root }

// At is the mount on top of path, if there is one.
func At(path string) (Info, bool, error) {
	all, err := List()
	if err != nil {
		return Info{}, false, err
	}
	var top Info
	found := false
	for _, info := range all {
		if info.Path == path {
			top, found = info, true
		}
	}
	return top, found, nil
}

// List reads the mount table of this process, bottom first.
func List() ([]Info, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	var all []Info
	for line := range strings.Lines(string(content)) {
		if info, ok := parse(line); ok {
			all = append(all, info)
		}
	}
	return all, nil
}

// parse reads a line such as
//
//	36 35 98:0 /root /path rw,noatime master:1 - ext3 /dev/root rw
func parse(line string) (Info, bool) {
	left, right, ok := strings.Cut(line, " - ")
	before, after := strings.Fields(left), strings.Fields(right)
	if !ok || len(before) < 6 || len(after) < 2 {
		return Info{}, false
	}
	return Info{
		Path: unescape(before[4]), Root: unescape(before[3]),
		FSType: after[0], Source: unescape(after[1]),
	}, true
}

// unescape undoes the octal escapes of blanks and backslashes.
func unescape(field string) string {
	var out strings.Builder
	for i := 0; i < len(field); i++ {
		if field[i] == '\\' && i+3 < len(field) {
			if code, err := strconv.ParseUint(field[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(code))
				i += 3
				continue
			}
		}
		out.WriteByte(field[i])
	}
	return out.String()
}

// Bind mounts what is at from at to as well.
func Bind(from, to string, readOnly bool) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind mounting %s at %s: %w", from, to, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errors.Join(fmt.Errorf("making %s read-only: %w", to, err), Detach(to))
	}
	return nil
}

// Detach takes off all mounts at path, at once, also dead ones and ones in use:
// what is open stays open.
func Detach(path string) error { return unmountAll(path, unix.MNT_DETACH) }

// Abort is Detach, and makes everything fail that is still open, if the
// filesystem knows how to.
func Abort(path string) error { return unmountAll(path, unix.MNT_DETACH|unix.MNT_FORCE) }

func unmountAll(path string, flags int) error {
	for {
		_, mounted, err := At(path)
		if err != nil || !mounted {
			return err
		}
		if err := unix.Unmount(path, flags|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmounting %s: %w", path, err)
		}
	}
}
