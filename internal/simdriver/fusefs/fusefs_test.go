package fusefs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/gate"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// mounted gives a directory, where it is mounted, and the other side's gate.
func mounted(t *testing.T, change ...func(*Config)) (dir, at string, control *gate.Gate) {
	t.Helper()
	top := t.TempDir()
	dir, at = filepath.Join(top, "dir"), filepath.Join(top, "mnt")
	for _, path := range []string{dir, at} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var gates [2]*gate.Gate
	for i := range gates {
		var err error
		if gates[i], err = gate.Open(filepath.Join(top, "gate")); err != nil {
			t.Fatal(err)
		}
	}
	gates[1].Admit(1)
	cfg := Config{Dir: dir, MountPoint: at, Source: "test", Gate: gates[0], Generation: 1, Logger: testr.New(t)}
	for _, c := range change {
		c(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal("these tests need /dev/fuse and CAP_SYS_ADMIN:", err)
	}
	t.Cleanup(func() {
		if !m.Alive() {
			t.Error("the filesystem ended too soon")
		}
		if err := errors.Join(mounts.Abort(at), gates[1].Close()); err != nil {
			t.Error(err)
		}
		select {
		case <-m.Done():
		case <-time.After(10 * time.Second):
			t.Error("the filesystem does not end")
		}
	})
	return dir, at, gates[1]
}

// same compares two trees: names, modes, sizes, contents and targets of links.
func same(t *testing.T, want, got string) {
	t.Helper()
	tree := func(root string) map[string]string {
		all := map[string]string{}
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			text := info.Mode().String()
			switch {
			case info.Mode().IsRegular():
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				text += " " + string(content) + info.ModTime().String()
			case info.Mode()&fs.ModeSymlink != 0:
				target, err := os.Readlink(path)
				if err != nil {
					return err
				}
				text += " -> " + target
			}
			all[strings.TrimPrefix(path, root)] = text
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return all
	}
	if diff := cmp.Diff(tree(want), tree(got)); diff != "" {
		t.Errorf("the directory and the mount differ:\n%s", diff)
	}
}

// TestOperations does what programs do, and looks at it from both sides.
func TestOperations(t *testing.T) {
	dir, at, _ := mounted(t)
	in := func(name string) string { return filepath.Join(at, name) }
	for _, step := range []struct {
		name string
		do   func() error
		want error
	}{
		{"create", func() error { return os.WriteFile(in("file"), []byte("content"), 0o640) }, nil},
		{"overwrite", func() error { return os.WriteFile(in("file"), []byte("new"), 0o640) }, nil},
		{"mkdir", func() error { return os.Mkdir(in("sub"), 0o750) }, nil},
		{"mkdir again", func() error { return os.Mkdir(in("sub"), 0o750) }, syscall.EEXIST},
		{"symlink", func() error { return os.Symlink("../file", in("sub/link")) }, nil},
		{"through the symlink", func() error { return os.WriteFile(in("sub/link"), []byte("linked"), 0) }, nil},
		{"hard link", func() error { return os.Link(in("file"), in("sub/hard")) }, nil},
		{"rename", func() error { return os.Rename(in("sub/hard"), in("moved")) }, nil},
		{"rename over", func() error { return os.Rename(in("moved"), in("file")) }, nil},
		{"exclusive", func() error {
			_, err := os.OpenFile(in("file"), os.O_CREATE|os.O_EXCL, 0)
			return err
		}, syscall.EEXIST},
		{"truncate", func() error { return os.Truncate(in("file"), 3) }, nil},
		{"chmod", func() error { return os.Chmod(in("file"), 0o600) }, nil},
		{"chown", func() error { return os.Lchown(in("file"), 7, 8) }, nil},
		{"times", func() error { return os.Chtimes(in("file"), time.Unix(1, 2), time.Unix(3, 4)) }, nil},
		{"pipe", func() error { return syscall.Mkfifo(in("pipe"), 0o600) }, nil},
		{"device", func() error { return syscall.Mknod(in("null"), syscall.S_IFCHR|0o600, 1<<8|3) }, syscall.EPERM},
		{"many", func() error {
			for i := range 300 {
				if err := os.WriteFile(in("sub/"+strings.Repeat("x", 100)+string(rune('a'+i%26))+string(rune('a'+i/26))), nil, 0o600); err != nil {
					return err
				}
			}
			return nil
		}, nil},
		{"rmdir full", func() error { return syscall.Rmdir(in("sub")) }, syscall.ENOTEMPTY},
		{"missing", func() error { _, err := os.Stat(in("none")); return err }, syscall.ENOENT},
		{"sync directory", func() error { return withFile(in("sub"), os.O_RDONLY, (*os.File).Sync) }, nil},
		{"allocate", func() error {
			return withFile(in("file"), os.O_RDWR, func(f *os.File) error { return unix.Fallocate(int(f.Fd()), 0, 0, 4096) })
		}, nil},
		{"statfs", func() error { return syscall.Statfs(at, &syscall.Statfs_t{}) }, nil},
	} {
		if err := step.do(); !errors.Is(err, step.want) {
			t.Errorf("%s: %v, want %v", step.name, err, step.want)
		}
		same(t, dir, at)
	}
	if err := os.RemoveAll(in("sub")); err != nil {
		t.Error(err)
	}
	same(t, dir, at)
}

func withFile(path string, flags int, do func(*os.File) error) error {
	file, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	return errors.Join(do(file), file.Close())
}

// TestAppendElsewhere: an append lands at the end that the directory knows, also
// if somebody else has moved it.
func TestAppendElsewhere(t *testing.T) {
	dir, at, _ := mounted(t)
	file, err := os.OpenFile(filepath.Join(at, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteString("one "); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "log")
	if err := withFile(other, os.O_WRONLY|os.O_APPEND, func(f *os.File) error { _, err := f.WriteString("two "); return err }); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("three"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(other); err != nil || string(got) != "one two three" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

// TestNothingIsCached: what changes in the directory shows at once.
func TestNothingIsCached(t *testing.T) {
	dir, at, _ := mounted(t)
	path, behind := filepath.Join(at, "file"), filepath.Join(dir, "file")
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, want := range []string{"first", "second one", ""} {
		if err := os.WriteFile(behind, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("read %q, %v, want %q", got, err, want)
		}
		if info, err := os.Stat(path); err != nil || info.Size() != int64(len(want)) {
			t.Errorf("size: %v, %v, want %d", info, err, len(want))
		}
	}
}

// TestUnlinkedFile: a file that lost its name is still read and written.
func TestUnlinkedFile(t *testing.T) {
	_, at, _ := mounted(t)
	file, err := os.Create(filepath.Join(at, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("content"); err != nil {
		t.Error(err)
	}
	if err := file.Truncate(3); err != nil {
		t.Error(err)
	}
	if info, err := file.Stat(); err != nil || info.Size() != 3 {
		t.Errorf("size: %v, %v", info, err)
	}
}

// TestNoSharedMaps: a writable memory map would write behind the gate's back.
func TestNoSharedMaps(t *testing.T) {
	_, at, _ := mounted(t)
	err := errors.Join(os.WriteFile(filepath.Join(at, "file"), make([]byte, 4096), 0o600),
		withFile(filepath.Join(at, "file"), os.O_RDWR, func(f *os.File) error {
			if _, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.ENODEV) {
				t.Errorf("a shared map: %v, want ENODEV", err)
			}
			return nil
		}))
	if err != nil {
		t.Error(err)
	}
}

// TestGate: every operation fails behind a shut or broken gate, and works again
// when it is mended.
func TestGate(t *testing.T) {
	dir, at, control := mounted(t)
	in := func(name string) string { return filepath.Join(at, name) }
	for name := range map[string]bool{"file": true} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("file", filepath.Join(dir, "link")), os.Mkdir(filepath.Join(dir, "sub"), 0o755)); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(in("file"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := os.Open(in("sub"))
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	operations := map[string]func() error{
		"read":      func() error { _, err := file.ReadAt(make([]byte, 4), 0); return err },
		"write":     func() error { _, err := file.WriteAt([]byte("x"), 0); return err },
		"sync":      file.Sync,
		"fdatasync": func() error { return unix.Fdatasync(int(file.Fd())) },
		"fstat":     func() error { _, err := file.Stat(); return err },
		"ftruncate": func() error { return file.Truncate(7) },
		"fallocate": func() error { return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, 10) },
		"seek data": func() error { _, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_DATA); return err },
		"stat":      func() error { _, err := os.Stat(in("file")); return err },
		"open":      func() error { return withFile(in("file"), os.O_RDONLY, func(*os.File) error { return nil }) },
		"readlink":  func() error { _, err := os.Readlink(in("link")); return err },
		"list":      func() error { _, err := os.ReadDir(at); return err },
		"sync dir":  sub.Sync,
		"chmod":     func() error { return os.Chmod(in("file"), 0o600) },
		"statfs":    func() error { return syscall.Statfs(at, &syscall.Statfs_t{}) },
	}
	check := func(when string, want error) {
		t.Helper()
		for name, operation := range operations {
			if err := operation(); !errors.Is(err, want) {
				t.Errorf("%s: %s: %v, want %v", when, name, err, want)
			}
		}
	}
	check("open", nil)
	if err := control.Break(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("broken", syscall.EIO)
	control.Mend()
	check("mended", nil)
	if err := control.Shut(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("shut", syscall.EIO)
	control.Admit(2)
	check("open for another publication", syscall.EIO)
	if err := file.Close(); !errors.Is(err, syscall.EIO) {
		t.Errorf("closing behind a shut gate: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(got) != "xontent" {
		t.Errorf("the directory holds %q, %v", got, err)
	}
}

func TestReadOnly(t *testing.T) {
	dir, at, _ := mounted(t, func(cfg *Config) { cfg.ReadOnly = true })
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(at, "file")
	for name, operation := range map[string]func() error{
		"create": func() error { return os.WriteFile(filepath.Join(at, "new"), nil, 0o600) },
		"write":  func() error { return os.WriteFile(path, nil, 0o600) },
		"remove": func() error { return os.Remove(path) },
		"mkdir":  func() error { return os.Mkdir(filepath.Join(at, "dir"), 0o700) },
		"chmod":  func() error { return os.Chmod(path, 0o700) },
		"rename": func() error { return os.Rename(path, path+"2") },
	} {
		if err := operation(); !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v, want EROFS", name, err)
		}
	}
	same(t, dir, at)
}

func TestBadConfig(t *testing.T) {
	if _, err := New(Config{Dir: "/x", MountPoint: "/y"}); err == nil {
		t.Error("mounted without a gate")
	}
	g, err := gate.Open(filepath.Join(t.TempDir(), "gate"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(Config{Dir: t.TempDir(), MountPoint: filepath.Join(t.TempDir(), "none"), Gate: g, Logger: testr.New(t)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("mounting at no directory: %v", err)
	}
}
