package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestWrongCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"":                      "missing --name, --kubeconfig, --root-dir",
		"--name n --root-dir r": "missing --kubeconfig",
		"--nonsense":            "unknown flag",
		"--lease-duration x":    "invalid argument",
		"nonsense":              "nonsense",
		"--name n --root-dir r --kubeconfig k --cpu x":    "--cpu",
		"--name n --root-dir r --kubeconfig k --memory x": "--memory",
		"ctl":                             "missing --control",
		"ctl --control s":                 "missing what to do",
		"ctl --control s explode":         "unknown fault",
		"ctl --control s release explode": "unknown fault",
	} {
		_, err := execute(t, strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q in one line", line, err, want)
		}
		if usage := (*usageError)(nil); !errors.As(err, &usage) {
			t.Errorf("%q: not a usage error", line)
		}
	}
}

func TestFailuresAreNotUsage(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--name", "n", "--root-dir", dir, "--kubeconfig", bad},
		{"--name", "n", "--root-dir", dir, "--kubeconfig", filepath.Join(dir, "none")},
		{"ctl", "--control", filepath.Join(dir, "none"), "status"},
	} {
		_, err := execute(t, args...)
		if usage := (*usageError)(nil); err == nil || errors.As(err, &usage) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestHelpNamesTheFaults(t *testing.T) {
	out, err := execute(t, "ctl", "--help")
	if err != nil || !strings.Contains(out, "hang-kill") || !strings.Contains(out, "power-off") {
		t.Errorf("%v: %s", err, out)
	}
}
