package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLastLines(t *testing.T) {
	long := strings.Repeat(strings.Repeat("x", 99)+"\n", 2000)
	for name, test := range map[string]struct{ content, want string }{
		"empty":              {"", ""},
		"fewer":              {"a\nb\n", "a\nb"},
		"more":               {"a\nb\nc\nd\n", "b\nc\nd"},
		"unfinished":         {"a\nb\nc\nd", "b\nc\nd"},
		"longer than window": {long + "a\nb\nc\n", "a\nb\nc"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := lastLines(path, 3); err != nil || got != test.want {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
	if _, err := lastLines(filepath.Join(t.TempDir(), "none"), 3); err == nil {
		t.Error("no error without a file")
	}
}

func TestWriteFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"one", "two"} {
		if err := writeFile(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("got %q, %v; want %q", got, err, content)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the mode is %v", info.Mode())
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v; want one", len(entries), err)
	}
}

func TestClaim(t *testing.T) {
	l := layout(t.TempDir())
	lock, err := l.claim()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.claim(); err == nil || !strings.Contains(err.Error(), "already runs in") {
		t.Errorf("a second claim: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := l.claim()
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	defer again.Close()
	if _, err := layout("/proc/nowhere").claim(); err == nil || !strings.Contains(err.Error(), "name a directory that this user may write") {
		t.Errorf("in a directory that cannot be made: %v", err)
	}
}
