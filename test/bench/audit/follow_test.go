package audit

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFollow(t *testing.T) {
	const mine, other = "ha-sidecar/v1 (linux)", "kubectl/v1"
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	f := Follow(path)
	third := line(mine, "delete persistentvolumes -", 200, 2)
	for _, tc := range []struct {
		written string
		want    int
	}{
		{"", 0},
		{line(mine, "create persistentvolumes -", 201, 0) + "\n" + line(mine, "list persistentvolumes -", 200, 0) + "\n" + line(mine, "update leases -", 200, 0) + "\n", 1},
		{line(mine, "create events -", 201, 1) + "\n" + line(other, "create events -", 201, 1) + "\n" + third[:20], 1},
		{"", 0},
		{third[20:] + "\n", 1},
		{"", 0},
	} {
		if _, err := log.WriteString(tc.written); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Writes(Program("ha-sidecar")); err != nil || got != tc.want {
			t.Errorf("after %q: %d, %v, want %d", tc.written, got, err, tc.want)
		}
	}
	if _, err := log.WriteString("nonsense\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Writes(Program("ha-sidecar")); err == nil {
		t.Error("nonsense is taken")
	}
	if _, err := Follow(path + "x").Writes(); err == nil {
		t.Error("a log that is not there is taken for empty")
	}
}
