package virtualnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

const (
	bootIDFile   = "boot-id"
	powerOffFile = "powered-off"
)

// bootID decides which boot this is. Others take a new boot ID for the proof
// that nothing of the old boot runs or is mounted, so an agent that finds
// leftovers of its predecessor keeps the predecessor's.
func bootID(root, given string, leftovers bool) (string, error) {
	path := filepath.Join(root, bootIDFile)
	marker := filepath.Join(root, powerOffFile)
	_, statErr := os.Stat(marker)
	off := statErr == nil
	id := given
	if id == "" && leftovers && !off {
		b, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("reading the boot ID: %w", err)
		}
		id = strings.TrimSpace(string(b))
	}
	if id == "" {
		id = uuid.NewString()
	}
	if err := os.WriteFile(path, []byte(id+"\n"), 0o644); err != nil {
		return "", fmt.Errorf("keeping the boot ID: %w", err)
	}
	if err := os.Remove(marker); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("removing the mark of the power-off: %w", err)
	}
	return id, nil
}

// markPowerOff makes the next start a new boot.
func (a *Agent) markPowerOff() error {
	if err := os.WriteFile(filepath.Join(a.cfg.RootDir, powerOffFile), nil, 0o644); err != nil {
		return fmt.Errorf("marking the power-off: %w", err)
	}
	return nil
}
