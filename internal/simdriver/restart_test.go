package simdriver

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/fusefs"
	"github.com/ha-sidecar/ha-sidecar/internal/simdriver/mounts"
)

// TestRestartKeepsPublications: a new controller process knows what the one
// before has published, and refuses a second node.
func TestRestartKeepsPublications(t *testing.T) {
	r := newRig(t)
	first, second := r.node("node-a"), r.node("node-b")
	volume := r.volume("data")
	r.must(r.publish(volume, first.id))
	again := r.start("c2")
	controller := csi.NewControllerClient(again.conn)
	_, err := controller.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: volume, NodeId: second.id, VolumeCapability: oneNode(),
	})
	wantCode(t, err, "FailedPrecondition")
	publications, err := again.ctl.Publications(t.Context())
	r.must(err)
	if len(publications) != 1 || publications[0].Volume != volume || publications[0].Node != first.id {
		t.Errorf("publications after a restart: %+v", publications)
	}
	_, err = controller.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: volume})
	r.must(err)
	if err := r.publish(volume, second.id); err != nil {
		t.Errorf("publishing elsewhere after an unpublish from all nodes: %v", err)
	}
}

// TestNodeRestart: SIGTERM unmounts, the next process mounts again.
func TestNodeRestart(t *testing.T) {
	r := newRig(t)
	node := r.node("node-a")
	volume, gone := r.volume("data"), r.volume("gone")
	path := filepath.Join(r.use(node, volume), "file")
	r.use(node, gone)
	r.must(os.WriteFile(path, []byte("content"), 0o644))
	open, err := os.Open(path)
	r.must(err)
	defer open.Close()
	node.stop()
	checkUnmounted(t, r.dir)
	r.must(r.unpublish(gone, node.id))

	node = r.node("node-a")
	if got := string(read(t, path)); got != "content" {
		t.Errorf("read %q after a restart", got)
	}
	if _, err := open.Read(make([]byte, 1)); err == nil {
		t.Error("a file of the earlier process still reads")
	}
	if _, mounted, err := mounts.At(r.target(gone, node.id)); mounted || err != nil {
		t.Errorf("a volume that was unpublished meanwhile is mounted again (%v)", err)
	}
	wantCode(t, r.stage(node, gone), "FailedPrecondition")
	for _, v := range []string{volume, gone} {
		r.must(r.nodeUnpublish(node, v))
		r.must(r.unstage(node, v))
	}
}

// kill uses the volume on a node and kills its process.
func kill(t *testing.T, r *rig, volume string) {
	t.Helper()
	node := r.node("node-a")
	w := startWriter(t, filepath.Join(r.use(node, volume), "file"))
	node.kill()
	<-w.failed
}

// TestNodeKilled: the dead mount is replaced by the next process.
func TestNodeKilled(t *testing.T) {
	r := newRig(t)
	volume := r.volume("data")
	kill(t, r, volume)
	path := filepath.Join(r.target(volume, "node-a"), "file")
	if _, err := os.Stat(path); !errors.Is(err, syscall.ENOTCONN) {
		t.Fatalf("the mount of a killed process answers %v, want ENOTCONN", err)
	}
	r.must(r.stageAgain(volume))
	if got, want := read(t, path), read(t, filepath.Join(r.data(volume), "file")); !bytes.Equal(got, want) {
		t.Errorf("read %d bytes after a restart, want %d", len(got), len(want))
	}
}

// TestDeadMountsAreTakenDown: unpublish and unstage work on what a killed
// process has left.
func TestDeadMountsAreTakenDown(t *testing.T) {
	r := newRig(t)
	volume := r.volume("data")
	kill(t, r, volume)
	// Not the same node ID: this one does not clear up when it starts.
	other := r.node("node-b")
	r.must(second(other.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
		VolumeId: volume, TargetPath: r.target(volume, "node-a")})))
	r.must(second(other.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{
		VolumeId: volume, StagingTargetPath: r.staging(volume, "node-a")})))
	checkUnmounted(t, r.dir)
}

func second[T any](_ T, err error) error { return err }

// stageAgain starts the node and does what an agent does after a restart.
func (r *rig) stageAgain(volume string) error {
	node := r.node("node-a")
	return errors.Join(r.stage(node, volume), r.nodePublish(node, volume))
}

// TestKilledHolderDoesNotBlockTheFence: the locks of a killed process are gone.
func TestKilledHolderDoesNotBlockTheFence(t *testing.T) {
	r := newRig(t)
	volume := r.volume("data")
	kill(t, r, volume)
	start := time.Now()
	r.must(r.unpublish(volume, "node-a"))
	t.Logf("fenced a killed node in %v", time.Since(start))
	r.node("node-a") // clears the dead mounts away
}

// TestWithoutFUSE: volumes are bind mounted and the driver says that nothing is
// fenced.
func TestWithoutFUSE(t *testing.T) {
	r := newRig(t)
	node := r.nodeHere("node-a", func(cfg *Config) {
		cfg.Mount = func(cfg fusefs.Config) (*fusefs.Mount, error) {
			return nil, errors.Join(syscall.ENODEV, cfg.Gate.Close())
		}
	})
	info, err := node.ctl.Info(t.Context())
	r.must(err)
	if !info.Fencing {
		t.Error("the driver says that it does not fence before anything is mounted")
	}
	volume := r.volume("data")
	path := filepath.Join(r.use(node, volume), "file")
	r.must(os.WriteFile(path, []byte("content"), 0o644))
	if got := string(read(t, filepath.Join(r.data(volume), "file"))); got != "content" {
		t.Errorf("the volume holds %q", got)
	}
	if info, err = node.ctl.Info(t.Context()); err != nil || info.Fencing {
		t.Errorf("the driver says that it fences bind mounts (%v)", err)
	}
	r.must(r.nodeUnpublish(node, volume))
	r.must(r.unstage(node, volume))
	checkUnmounted(t, r.dir)
}

// TestOtherMountErrorsDoNotUnfence: only a machine without FUSE gets bind mounts.
func TestOtherMountErrorsDoNotUnfence(t *testing.T) {
	r := newRig(t)
	node := r.nodeHere("node-a", func(cfg *Config) {
		cfg.Mount = func(cfg fusefs.Config) (*fusefs.Mount, error) {
			return nil, errors.Join(syscall.EIO, cfg.Gate.Close())
		}
	})
	volume := r.volume("data")
	r.must(r.publish(volume, node.id))
	wantCode(t, r.stage(node, volume), "Internal")
	checkUnmounted(t, r.dir)
}
