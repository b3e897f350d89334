package usage

import (
	"os"
	"testing"
)

func TestParseMemory(t *testing.T) {
	if got, err := parseMemory("Name:\tx\nVmHWM:\t  102400 kB\nVmRSS:\t   51200 kB\n"); got != (Memory{Resident: 50, Peak: 100}) || err != nil {
		t.Errorf("%+v, %v, want 50 and 100", got, err)
	}
	for _, bad := range []string{"Name:\tx\n", "VmHWM:\t1 kB\n", "VmHWM:\t1 kB\nVmRSS:\tmuch kB\n"} {
		if _, err := parseMemory(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if got, err := ReadMemory(os.Getpid()); err != nil || got.Resident <= 0 || got.Peak < got.Resident {
		t.Errorf("of this process: %+v, %v", got, err)
	}
}
