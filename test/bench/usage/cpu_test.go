package usage

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCPU(t *testing.T) {
	if got := parseCPU("42 (a b) c) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 100 1 1"); got != 2 {
		t.Errorf("%v s, want 2", got)
	}
	if got := parseCPU("42 (x)"); got != 0 {
		t.Errorf("of a line that was cut off: %v s", got)
	}
	for line, want := range map[string]string{"bin/localcluster\x00etcd\x00--x": "etcd", "/a/ha-sidecar\x00--v=2": "ha-sidecar", "localcluster": "localcluster"} {
		if got := programName([]byte(line)); got != want {
			t.Errorf("%q is called %q, want %q", line, got, want)
		}
	}
	if diff := cmp.Diff(CPU{"a": 2, "new": 1}, CPU{"a": 5, "b": 1, "new": 1}.Since(CPU{"a": 3, "b": 1})); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
	if ReadCPU()["usage.test"] < 0 {
		t.Error("this process has used less than nothing")
	}
}
