package mounts

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	for line, want := range map[string]Info{
		"36 35 98:0 /root /path rw,noatime master:1 shared:2 - ext4 /dev/root rw": {Path: "/path", Root: "/root", FSType: "ext4", Source: "/dev/root"},
		"36 35 0:50 / /a\\040b rw - fuse.simdriver vol-x:node:1 rw":               {Path: "/a b", Root: "/", FSType: "fuse.simdriver", Source: "vol-x:node:1"},
		"36 35 0:50 / /back\\134slash rw - tmpfs none rw":                         {Path: "/back\\slash", Root: "/", FSType: "tmpfs", Source: "none"},
	} {
		got, ok := parse(line)
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", line, ok, diff)
		}
	}
	for _, line := range []string{"", "nonsense", "36 35 98:0 /root /path rw", "1 2 - 3", " - ext4 /dev/root rw"} {
		if got, ok := parse(line); ok {
			t.Errorf("%q became %+v", line, got)
		}
	}
}

// TestParseAnything: no line is a panic.
func TestParseAnything(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { parse(rapid.String().Draw(rt, "line")) })
}

func TestBindAndDetach(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for _, path := range []string{from, to} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := Bind(from, to, false); err != nil {
		t.Fatal(err)
	}
	if err := Bind(from, to, true); err != nil { // a second one on top
		t.Fatal(err)
	}
	top, mounted, err := At(to)
	if err != nil || !mounted || filepath.Base(top.Root) != "from" {
		t.Errorf("at the target: %+v, %v, %v", top, mounted, err)
	}
	if err := os.WriteFile(filepath.Join(to, "file"), nil, 0o600); err == nil {
		t.Error("a read-only bind mount was written")
	}
	for range 2 { // the second time there is nothing
		if err := Detach(to); err != nil {
			t.Fatal(err)
		}
	}
	if _, mounted, err := At(to); mounted || err != nil {
		t.Errorf("still mounted: %v, %v", mounted, err)
	}
	if err := Bind(filepath.Join(dir, "none"), to, false); err == nil {
		t.Error("nothing was bind mounted")
	}
	if err := Abort(to); err != nil {
		t.Error(err)
	}
}
