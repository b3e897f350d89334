package testcluster

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func kill(t *testing.T, pid string) {
	t.Helper()
	number, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(number, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func TestValidate(t *testing.T) {
	dir := t.TempDir()
	program, text := filepath.Join(dir, "program"), filepath.Join(dir, "text")
	for path, mode := range map[string]os.FileMode{program: 0o700, text: 0o600} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		cfg  Config
		want string
	}{
		"good":        {Config{Binary: program, Args: []string{"etcd=--a=b"}}, ""},
		"missing":     {Config{Binary: filepath.Join(dir, "none")}, "run: make build"},
		"no program":  {Config{Binary: text}, "run: make build"},
		"a directory": {Config{Binary: dir}, "run: make build"},
		"no flag":     {Config{Binary: program, Args: []string{"--v=1"}}, "COMPONENT=--flag=value"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.cfg.validate()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestFindBinary(t *testing.T) {
	got, err := findBinary()
	if err != nil {
		t.Fatal(err)
	}
	if want, err := filepath.Abs("../../bin/localcluster"); err != nil || got != want {
		t.Errorf("got %s, want %s, %v", got, want, err)
	}
	t.Chdir(t.TempDir())
	if _, err := findBinary(); err == nil || !strings.Contains(err.Error(), "outside the repository") {
		t.Errorf("outside the repository: %v", err)
	}
}
