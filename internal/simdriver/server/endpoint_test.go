package server

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestParseEndpoint(t *testing.T) {
	for endpoint, want := range map[string]string{
		"unix:///run/csi.sock": "/run/csi.sock",
		"unix:/run/csi.sock":   "/run/csi.sock",
		"unix:///run//x/../y":  "/run/y",
		"unix://run/csi.sock":  "",
		"unix://":              "",
		"unix:":                "",
		"/run/csi.sock":        "",
		"tcp://127.0.0.1:80":   "",
		"":                     "",
	} {
		got, err := ParseEndpoint(endpoint)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", endpoint, got, err, want)
		}
	}
}

// TestListen: a dead socket is replaced, everything else stays.
func TestListen(t *testing.T) {
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	first, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(path); err == nil {
		t.Error("a served socket was taken over")
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := listen(path)
	if err != nil {
		t.Fatalf("replacing a dead socket: %v", err)
	}
	defer again.Close()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{file, dir, filepath.Join(dir, "none", "s")} {
		if _, err := listen(bad); err == nil {
			t.Errorf("listening at %s", bad)
		}
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != "precious" {
		t.Errorf("the file in the way holds %q, %v", content, err)
	}
}
