package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ha-sidecar/ha-sidecar/test/bench/stats"
)

func TestBars(t *testing.T) {
	for _, tc := range []struct {
		bar      Bar
		met      bool
		measured float64
	}{
		{AtLeast("x", 2, 2), true, 2},
		{AtLeast("x", 1.99, 2), false, 1.99},
		{AtMost("x", 2, 2), true, 2},
		{AtMost("x", 2.01, 2), false, 2.01},
		{Exactly("x", stats.Spread{Median: 5, Min: 5, Max: 5}, 5), true, 5},
		{Exactly("x", stats.Spread{Median: 5, Min: 5, Max: 6}, 5), false, 6},
		{Exactly("x", stats.Spread{Median: 5, Min: 1, Max: 6}, 5), false, 1},
	} {
		var out strings.Builder
		if met := Bars(&out, []Bar{tc.bar}); met != tc.met || tc.bar.Measured != tc.measured || strings.Contains(out.String(), "NOT MET") == tc.met {
			t.Errorf("met %t, want %t and %v: %s", met, tc.met, tc.measured, out.String())
		}
	}
	if !Bars(new(strings.Builder), nil) {
		t.Error("none are not met")
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	Table(&out, []Head{{"", []string{"left", "right"}}}, []Line{{"per second", "%.1f", []stats.Spread{{Median: 2, Min: 1, Max: 3}, {Median: 5, Min: 4, Max: 6}}}})
	for _, want := range []string{"left", "right", "per second", "2.0 (1.0 - 3.0)", "5.0 (4.0 - 6.0)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

func TestSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.json")
	if err := Save(path, []Bar{AtLeast("x", 1, 2)}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var read []Bar
	if err := json.Unmarshal(content, &read); err != nil || len(read) != 1 || read[0].What != "x" {
		t.Errorf("%+v, %v", read, err)
	}
}
