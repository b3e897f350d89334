package simdriver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// writer appends numbered lines through one open file and syncs each, until a
// write fails. It is the pod whose container would not die.
type writer struct {
	file   *os.File
	synced atomic.Int64
	first  chan struct{} // closed after the first synced line
	failed chan struct{} // closed when a write has failed with err
	err    error
}

func startWriter(t *testing.T, path string) *writer {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{file: file, first: make(chan struct{}), failed: make(chan struct{})}
	go func() {
		defer close(w.failed)
		for i := 0; ; i++ {
			if _, w.err = fmt.Fprintf(file, "line %d\n", i); w.err != nil {
				return
			}
			if w.err = file.Sync(); w.err != nil {
				return
			}
			if w.synced.Add(1) == 1 {
				close(w.first)
			}
		}
	}()
	t.Cleanup(func() {
		// Closing fails behind a closed gate, as it does on a lost disk, or when
		// the process behind it was killed. It ends the writer where nothing else has.
		if err := file.Close(); err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ENOTCONN) {
			t.Error(err)
		}
		<-w.failed
	})
	<-w.first
	return w
}

// wait waits until a write has failed. A writer that was not fenced never ends.
func (w *writer) wait(t *testing.T) {
	t.Helper()
	select {
	case <-w.failed:
	case <-time.After(10 * time.Second):
		t.Fatal("the writer goes on writing")
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// TestFenceHolds: once ControllerUnpublishVolume has answered, or FailPath has
// returned, not a byte of that node reaches the volume.
func TestFenceHolds(t *testing.T) {
	for name, fence := range map[string]func(r *rig, volume, node string) error{
		"unpublish": func(r *rig, volume, node string) error { return r.unpublish(volume, node) },
		"fail path": func(r *rig, volume, node string) error { return r.ctl.FailPath(r.t.Context(), volume, node) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			node := r.node("node-a")
			volume := r.volume("data")
			path := r.use(node, volume)
			writers := make([]*writer, 4)
			for i := range writers {
				writers[i] = startWriter(t, filepath.Join(path, fmt.Sprint("file-", i)))
			}

			r.must(fence(r, volume, node.id))

			acknowledged := make([][]byte, len(writers))
			for i := range writers {
				acknowledged[i] = read(t, filepath.Join(r.data(volume), fmt.Sprint("file-", i)))
			}
			for i, w := range writers {
				w.wait(t)
				if !errors.Is(w.err, syscall.EIO) {
					t.Errorf("writer %d failed with %v, want EIO", i, w.err)
				}
				if _, err := w.file.ReadAt(make([]byte, 1), 0); !errors.Is(err, syscall.EIO) {
					t.Errorf("reading through the open file: %v, want EIO", err)
				}
				after := read(t, filepath.Join(r.data(volume), fmt.Sprint("file-", i)))
				if string(after) != string(acknowledged[i]) {
					t.Errorf("file %d grew from %d to %d bytes after the fence", i, len(acknowledged[i]), len(after))
				}
			}
			checkAllFail(t, path)
		})
	}
}

// checkAllFail: nothing else works on the path either.
func checkAllFail(t *testing.T, path string) {
	t.Helper()
	for name, operation := range map[string]func() error{
		"stat":     func() error { _, err := os.Stat(filepath.Join(path, "file-0")); return err },
		"list":     func() error { _, err := os.ReadDir(path); return err },
		"create":   func() error { return os.WriteFile(filepath.Join(path, "new"), nil, 0o644) },
		"truncate": func() error { return os.Truncate(filepath.Join(path, "file-0"), 0) },
		"remove":   func() error { return os.Remove(filepath.Join(path, "file-0")) },
		"rename":   func() error { return os.Rename(filepath.Join(path, "file-0"), filepath.Join(path, "x")) },
		"mkdir":    func() error { return os.Mkdir(filepath.Join(path, "dir"), 0o755) },
	} {
		if err := operation(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", name, err)
		}
	}
}

// TestFenceUnderPressure fences again and again while many write: what the
// volume holds at the acknowledgement is what it holds for good.
func TestFenceUnderPressure(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume := r.volume("data")
	for round := range 20 {
		path := r.use(node, volume)
		var group sync.WaitGroup
		started := make(chan struct{}, 8)
		for i := range 8 {
			file, err := os.OpenFile(filepath.Join(path, fmt.Sprint(i)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			r.must(err)
			group.Go(func() {
				defer file.Close()
				for n := 0; ; n++ {
					if _, err := io.WriteString(file, "x"); err != nil {
						return
					}
					if n == 0 {
						started <- struct{}{}
					}
				}
			})
		}
		for range 8 {
			<-started
		}
		r.must(r.unpublish(volume, node.id))
		var acknowledged [8]int
		for i := range acknowledged {
			acknowledged[i] = len(read(t, filepath.Join(r.data(volume), fmt.Sprint(i))))
		}
		group.Wait()
		for i, want := range acknowledged {
			if got := len(read(t, filepath.Join(r.data(volume), fmt.Sprint(i)))); got != want {
				t.Fatalf("round %d: file %d has %d bytes, %d at the acknowledgement", round, i, got, want)
			}
		}
		r.must(r.nodeUnpublish(node, volume))
		r.must(r.unstage(node, volume))
	}
}

// TestHealedPathWorksAgain: a path that comes back serves the same open file.
func TestHealedPathWorksAgain(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume := r.volume("data")
	path := r.use(node, volume)
	file, err := os.Create(filepath.Join(path, "file"))
	r.must(err)
	defer file.Close()
	r.must(r.ctl.FailPath(t.Context(), volume, node.id))
	if _, err := file.WriteString("lost"); !errors.Is(err, syscall.EIO) {
		t.Fatalf("writing on a failed path: %v, want EIO", err)
	}
	r.must(r.ctl.HealPath(t.Context(), volume, node.id))
	if _, err := file.WriteString("kept"); err != nil {
		t.Fatalf("writing on a healed path: %v", err)
	}
	if got := string(read(t, filepath.Join(r.data(volume), "file"))); got != "kept" {
		t.Errorf("the volume holds %q, want %q", got, "kept")
	}
}

// TestFenceOutlivesPublication: what was open before a fence stays dead when the
// volume is published to the same node again, until it is staged again.
func TestFenceOutlivesPublication(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume := r.volume("data")
	path := r.use(node, volume)
	old, err := os.Create(filepath.Join(path, "file"))
	r.must(err)
	defer old.Close()
	r.must(r.unpublish(volume, node.id))
	r.must(r.publish(volume, node.id))
	if _, err := old.WriteString("late"); !errors.Is(err, syscall.EIO) {
		t.Errorf("writing through a file of the earlier publication: %v, want EIO", err)
	}
	// The path has no publication of this generation mounted either.
	if err := os.WriteFile(filepath.Join(path, "file"), nil, 0o644); !errors.Is(err, syscall.EIO) {
		t.Errorf("writing at the path of the earlier publication: %v, want EIO", err)
	}
	r.must(r.stage(node, volume))
	r.must(r.nodePublish(node, volume))
	r.must(os.WriteFile(filepath.Join(path, "file"), []byte("new"), 0o644))
	if _, err := old.WriteString("late"); !errors.Is(err, syscall.EIO) {
		t.Errorf("writing through a file of the earlier publication: %v, want EIO", err)
	}
	if got := string(read(t, filepath.Join(r.data(volume), "file"))); got != "new" {
		t.Errorf("the volume holds %q, want %q", got, "new")
	}
}

// TestFailover: the second node goes on where the first was cut off, and is
// refused until it is.
func TestFailover(t *testing.T) {
	r := newRig(t)
	first, second := r.node("node-a"), r.node("node-b")
	volume := r.volume("data")
	w := startWriter(t, filepath.Join(r.use(first, volume), "file"))
	wantCode(t, r.publish(volume, second.id), "FailedPrecondition")
	r.must(r.unpublish(volume, first.id))
	before := read(t, filepath.Join(r.data(volume), "file"))
	path := filepath.Join(r.use(second, volume), "file")
	if got := string(read(t, path)); got != string(before) {
		t.Errorf("the second node reads %d bytes, the volume held %d", len(got), len(before))
	}
	w.wait(t)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	r.must(err)
	_, err = file.WriteString("second\n")
	r.must(errors.Join(err, file.Sync(), file.Close()))
	if got := string(read(t, filepath.Join(r.data(volume), "file"))); got != string(before)+"second\n" {
		t.Error("the second node's line is not right after the first node's last")
	}
	wantLedger(t, r, "controller-publish node-a", "node-stage node-a", "node-publish node-a",
		"controller-publish-refused node-b", "controller-unpublish node-a",
		"controller-publish node-b", "node-stage node-b", "node-publish node-b")
}

// TestReadOnly: neither a read-only publication nor a read-only target writes.
func TestReadOnly(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume := r.volume("data")
	_, err := r.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: volume, NodeId: node.id, VolumeCapability: oneNode(), Readonly: true,
	})
	r.must(err)
	r.must(os.WriteFile(filepath.Join(r.data(volume), "file"), []byte("content"), 0o644))
	r.must(r.stage(node, volume))
	r.must(r.nodePublish(node, volume))
	path := filepath.Join(r.target(volume, node.id), "file")
	if got := string(read(t, path)); got != "content" {
		t.Errorf("read %q", got)
	}
	if err := os.WriteFile(path, nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing: %v, want EROFS", err)
	}
}
