package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// What the ledger records. A publish is written before the volume can be used,
// and an unpublish after it can not be used any more; both under the volume's
// lock. So if the ledger shows no two publications at once, there were none.
//
// A volume or a snapshot is written before it is there, and again after it is
// gone, under its lock too. So what exists is always among what the ledger shows
// as made and not deleted; only a process that was killed in between leaves more
// there than exists.
const (
	OpCreate         = "controller-create"
	OpDelete         = "controller-delete"
	OpCreateSnapshot = "snapshot-create"
	OpDeleteSnapshot = "snapshot-delete"

	OpPublish       = "controller-publish"
	OpUnpublish     = "controller-unpublish"
	OpRefused       = "controller-publish-refused"
	OpStage         = "node-stage"
	OpUnstage       = "node-unstage"
	OpNodePublish   = "node-publish"
	OpNodeUnpublish = "node-unpublish"
	OpPathFail      = "path-fail"
	OpPathHeal      = "path-heal"
)

// Entry is one line of the ledger: an effect, not a call. A call that changed
// nothing leaves none.
type Entry struct {
	Time   time.Time `json:"time"`
	Op     string    `json:"op"`
	Volume string    `json:"volume"`
	// Name is what CreateVolume or CreateSnapshot was told.
	Name string `json:"name,omitempty"`
	// Snapshot is the ID of the snapshot of Volume.
	Snapshot   string `json:"snapshot,omitempty"`
	Node       string `json:"node"`
	Mode       string `json:"mode,omitempty"`
	ReadOnly   bool   `json:"readOnly,omitempty"`
	Generation uint64 `json:"generation,omitempty"`
	Path       string `json:"path,omitempty"`
}

func (s *Store) ledgerPath() string { return filepath.Join(s.dir, "ledger.jsonl") }

func (s *Store) record(entry Entry) error {
	entry.Time = s.clock.Now()
	line, err := json.Marshal(entry)
	if err != nil {
		return fmt.Errorf("encoding a ledger entry: %w", err)
	}
	file, err := os.OpenFile(s.ledgerPath(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("opening the ledger: %w", err)
	}
	// One write: lines of several processes do not mix.
	_, err = file.Write(append(line, '\n'))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing the ledger: %w", err)
	}
	return nil
}

// Ledger reads all entries, in the order in which they were written.
func (s *Store) Ledger() ([]Entry, error) {
	entries := []Entry{}
	content, err := os.ReadFile(s.ledgerPath())
	if errors.Is(err, os.ErrNotExist) {
		return entries, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	for line := range bytes.Lines(content) {
		var entry Entry
		if err := json.Unmarshal(line, &entry); err != nil {
			return nil, fmt.Errorf("reading entry %d of the ledger: %w", len(entries)+1, err)
		}
		entries = append(entries, entry)
	}
	return entries, nil
}
