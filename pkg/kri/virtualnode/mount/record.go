package mount

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ha-sidecar/ha-sidecar/pkg/kri/virtualnode/process"
	"github.com/ha-sidecar/ha-sidecar/pkg/volume"
)

// record is what the node holds of a volume, kept on disk. It is written before
// the call that it speaks of, so that after a crash the call can be undone.
type record struct {
	Driver string        `json:"driver"`
	Handle volume.Handle `json:"handle"`
	PV     string        `json:"pv"`
	// StagingPath is empty for a driver that does not stage.
	StagingPath string `json:"stagingPath,omitempty"`
	// Staged is true from NodeStageVolume's success until NodeUnstageVolume is
	// about to be called.
	Staged         bool              `json:"staged,omitempty"`
	PublishContext map[string]string `json:"publishContext,omitempty"`
	// Publications is nil as long as nothing is on disk.
	Publications map[types.UID]publication `json:"publications,omitempty"`
	// NotAttachable is true for a driver whose volumes are never attached.
	NotAttachable bool `json:"notAttachable,omitempty"`
}

// publication is the volume at one pod.
type publication struct {
	// Name is the pod's own name of the volume.
	Name string `json:"name"`
	Path string `json:"path"`
	// Published is true once NodePublishVolume succeeded.
	Published bool `json:"published,omitempty"`
}

func (r *record) unique() v1.UniqueVolumeName { return volume.UniqueName(r.Driver, r.Handle) }

const recordFile = "vol_data.json"

// volumeDir is named by a hash: a handle is opaque and never part of a path.
func (m *Manager) volumeDir(driver string, handle volume.Handle) string {
	sum := sha256.Sum256([]byte(handle))
	return filepath.Join(m.cfg.Root, "plugins", driver, fmt.Sprintf("%x", sum))
}

func (m *Manager) save(rec *record) error {
	dir := m.volumeDir(rec.Driver, rec.Handle)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("making the directory of volume %s: %w", rec.PV, err)
	}
	if err := process.WriteJSON(filepath.Join(dir, recordFile), rec); err != nil {
		return fmt.Errorf("saving the state of volume %s: %w", rec.PV, err)
	}
	return nil
}

// forget removes the record and the then empty directories around it. It never
// descends: what is left in a staging path is somebody's data.
func (m *Manager) forget(rec *record) error {
	dir := m.volumeDir(rec.Driver, rec.Handle)
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the state of volume %s: %w", rec.PV, err)
	}
	if rec.StagingPath != "" {
		_ = os.Remove(rec.StagingPath) // The driver may have removed it, or not.
	}
	_ = os.Remove(dir)
	return nil
}

// load reads all records.
func (m *Manager) load() ([]*record, error) {
	paths, err := filepath.Glob(filepath.Join(m.cfg.Root, "plugins", "*", "*", recordFile))
	if err != nil {
		return nil, err
	}
	var out []*record
	for _, path := range paths {
		rec := &record{}
		if err := process.ReadJSON(path, rec); err != nil {
			return nil, fmt.Errorf("reading the state of a volume: %w", err)
		}
		if rec.Publications == nil {
			rec.Publications = map[types.UID]publication{}
		}
		out = append(out, rec)
	}
	return out, nil
}
