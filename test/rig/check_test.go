package rig

import (
	"strings"
	"testing"
)

func TestCheckLinesFindsWhatMustNotBe(t *testing.T) {
	file := func(rows ...string) []Line {
		lines, err := ParseLines([]byte(strings.Join(rows, "\n") + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		return lines
	}
	for name, c := range map[string]struct {
		lines  []Line
		synced map[string]int64
		want   string
	}{
		"a handover":             {lines: file("1 1 a", "2 2 a", "3 3 b"), synced: map[string]int64{"a": 2, "b": 3}},
		"a line lost":            {lines: file("1 1 a", "3 3 b"), want: "lost or doubled"},
		"a line doubled":         {lines: file("1 1 a", "1 1 a"), want: "lost or doubled"},
		"two writers":            {lines: file("1 1 a", "2 2 b", "3 3 a"), want: "two writers"},
		"a synced line gone":     {lines: file("1 1 a"), synced: map[string]int64{"a": 2}, want: "is not in the file"},
		"a synced line replaced": {lines: file("1 1 a", "2 2 b"), synced: map[string]int64{"a": 2}, want: "is not in the file"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckLines(c.lines, c.synced)
			if c.want == "" && err != nil {
				t.Errorf("CheckLines() = %v, want no complaint", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("CheckLines() = %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestParseLines(t *testing.T) {
	lines, err := ParseLines([]byte("1 5 a\n2 6 a\n3 7"))
	if err != nil || len(lines) != 2 {
		t.Errorf("ParseLines() = %v, %v; want two lines, the unfinished third left out", lines, err)
	}
	if _, err := ParseLines([]byte("1 5 a\nx y\n")); err == nil {
		t.Error("ParseLines() accepted a torn line")
	}
}

func TestParseSynced(t *testing.T) {
	if n, failed := ParseSynced([]byte("synced 1 5\nsynced 2 6\nerror 3 input/output error\n")); n != 2 || !failed {
		t.Errorf("ParseSynced() = %d, %v; want 2, true", n, failed)
	}
}
