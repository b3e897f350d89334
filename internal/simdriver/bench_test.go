package simdriver

import (
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkSyncedWrite is a line appended and synced: through the filesystem,
// and to the directory behind it as the floor.
func BenchmarkSyncedWrite(b *testing.B) {
	r := newRig(b)
	node := r.node("node-a")
	volume := r.volume("data")
	for name, dir := range map[string]string{"fuse": r.use(node, volume), "directory": r.data(volume)} {
		b.Run(name, func(b *testing.B) {
			file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			line := []byte("2026-01-02T03:04:05.678901234Z line 1234567\n")
			for b.Loop() {
				if _, err := file.Write(line); err != nil {
					b.Fatal(err)
				}
				if err := file.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
