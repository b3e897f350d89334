package version

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

func TestGet(t *testing.T) {
	info := Get()
	if info.GoVersion != runtime.Version() || info.Platform != runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("Get() = %+v", info)
	}
	if s := info.String(); !strings.HasPrefix(s, "ha-sidecar ") || !strings.Contains(s, info.GoVersion) || strings.Contains(s, "\n") {
		t.Errorf("String() = %q, want one line with name and Go version", s)
	}
}

func TestFormats(t *testing.T) {
	info := Info{Version: "v1.2.3", Revision: "abc", GoVersion: "go1.26", Platform: "linux/amd64"}
	if got, want := info.String(), "ha-sidecar v1.2.3 (abc) go1.26 linux/amd64"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	info.Revision = ""
	b, err := json.Marshal(info)
	if want := `{"version":"v1.2.3","goVersion":"go1.26","platform":"linux/amd64"}`; err != nil || string(b) != want {
		t.Errorf("%s, %v; want %s", b, err, want)
	}
}
